"""A keyword of Delta."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events", max_file=3),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
