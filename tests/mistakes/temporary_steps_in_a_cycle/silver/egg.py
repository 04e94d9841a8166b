"""Reads the hen."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.egg",
    comment="readings",
    source=Delta("silver.hen"),
    schema="key BINARY, offset BIGINT",
    temporary=True,
)
