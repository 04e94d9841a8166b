"""Spark takes two columns for one."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, Offset BIGINT, offset BIGINT",
)
