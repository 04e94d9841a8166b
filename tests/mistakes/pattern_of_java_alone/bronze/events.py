"""Python reads it in another way."""

from include.spec import Kafka, Table

TABLE = Table(name="bronze.events", comment="events", source=Kafka(pattern="events-[a-z&&[^q]]"))
