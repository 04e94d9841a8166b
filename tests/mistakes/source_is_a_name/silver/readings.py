"""A name where a source belongs."""

from include.spec import Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source="bronze.events",
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
