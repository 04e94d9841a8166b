"""They would have no place."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source=Kafka("events", schema_ids=True))
