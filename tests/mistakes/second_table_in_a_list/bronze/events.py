"""Right."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source=Kafka("events"))
