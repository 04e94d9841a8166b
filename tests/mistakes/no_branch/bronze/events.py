"""It reads nothing."""

from include.spec import Table

TABLE = Table(name="bronze.events", comment="events", source={})
