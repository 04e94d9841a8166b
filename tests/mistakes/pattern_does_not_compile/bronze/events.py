"""The bracket is not closed."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source=Kafka(pattern="events-[a-z"))
