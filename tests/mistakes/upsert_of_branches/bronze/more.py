"""Right."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.more", comment="events", source=Kafka("events"))
