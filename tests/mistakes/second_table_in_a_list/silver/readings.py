"""A file with more than its table."""

from dataclasses import replace

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
MORE = [replace(TABLE, name=f"gold.{name}") for name in ("first", "second")]
