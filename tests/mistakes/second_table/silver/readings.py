"""A file with more than its table."""

from dataclasses import replace

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
OTHERS = replace(TABLE, name="silver.others")
