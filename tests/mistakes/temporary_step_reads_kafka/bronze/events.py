"""A step that is not stored and reads what Kafka forgets."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source=Kafka("events"), temporary=True)
