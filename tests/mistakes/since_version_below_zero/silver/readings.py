"""There is no such version."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events", since_version=-1),
    schema="key BINARY, offset BIGINT",
)
