"""Computes anew what Kafka may have forgotten."""

from include.spec import Kafka, Replace, Table

TABLE = Table(
    name="gold.latest",
    comment="readings",
    source=Kafka("events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Replace(),
)
