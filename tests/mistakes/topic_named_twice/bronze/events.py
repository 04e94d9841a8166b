"""One of them is a slip."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source=Kafka(("events", "events")))
