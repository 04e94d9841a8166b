"""A range ends before it begins."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    schedule="0 9-3 * * *",
)
