"""An option of Kafka's client."""

from include.spec import Kafka, Table

TABLE = Table(
    name="bronze.events",
    comment="events",
    source=Kafka("events", options={"kafka.sasl.jaas.config": "PlainLoginModule required password='hush';"}),
)
