"""Reads itself."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("silver.readings"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
