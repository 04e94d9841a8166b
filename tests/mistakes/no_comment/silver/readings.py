"""A comment is needed."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
