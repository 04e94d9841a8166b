"""Its source is misspelt."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.event"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
