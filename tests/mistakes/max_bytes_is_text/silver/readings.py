"""A size in words."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events", max_bytes="1 GB"),
    schema="key BINARY, offset BIGINT",
)
