"""Says what a table cannot say."""

from include.spec import Delta, Table

TABLE = Table(name="silver.readings", comment="readings", source=Delta("bronze.events"), retention="7 days")
