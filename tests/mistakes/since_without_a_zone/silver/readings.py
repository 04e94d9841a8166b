"""Nobody knows which moment that is."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events", since="2026-03-01"),
    schema="key BINARY, offset BIGINT",
)
