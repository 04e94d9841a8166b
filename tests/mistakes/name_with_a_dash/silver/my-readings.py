"""A name that SQL cannot say."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.my-readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
