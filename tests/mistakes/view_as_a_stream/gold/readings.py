"""Reads a view as a stream."""

from include.spec import Delta, Table

TABLE = Table(
    name="gold.readings",
    comment="readings",
    source=Delta("silver.latest"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
