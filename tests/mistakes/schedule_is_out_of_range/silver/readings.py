"""An hour has no minute 99."""

from include.spec import Delta, Maintenance, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    maintain=Maintenance(schedule="99 * * * *"),
)
