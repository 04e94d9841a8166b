"""Reads the egg."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.hen",
    comment="readings",
    source=Delta("silver.egg"),
    schema="key BINARY, offset BIGINT",
    temporary=True,
)
