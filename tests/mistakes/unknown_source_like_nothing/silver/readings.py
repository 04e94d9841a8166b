"""Its source is like no table."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("zzz"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
