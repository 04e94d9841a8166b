"""A name that SQL takes for another."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.Readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
