"""Reads Kafka beside bronze."""

from include.spec import Kafka, Table

TABLE = Table(
    name="gold.readings",
    comment="readings",
    source=Kafka("events"),
)
