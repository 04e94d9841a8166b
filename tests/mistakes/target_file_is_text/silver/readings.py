"""A size with its unit."""

from include.spec import Delta, Maintenance, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    maintain=Maintenance(target_file_mb="128 MB"),
)
