"""A batch of no files."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events", max_files=0),
    schema="key BINARY, offset BIGINT",
)
