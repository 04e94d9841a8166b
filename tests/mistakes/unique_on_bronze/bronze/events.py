"""Would keep the first of equal messages only."""

from include.spec import Append, Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source=Kafka("events"), write=Append(unique=("key",)))
