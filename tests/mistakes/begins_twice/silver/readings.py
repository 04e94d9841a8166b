"""Begins at a version and at a moment."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events", since_version=3, since="2026-03-01T00:00:00Z"),
    schema="key BINARY, offset BIGINT",
)
