"""A keyword of Table."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    shedule="0 * * * *",
)
