"""It is not clear which counts."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source=Kafka("events", pattern="events-.*"))
