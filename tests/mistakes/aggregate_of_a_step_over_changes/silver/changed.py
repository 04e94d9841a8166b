"""Right: a step over changes."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.changed",
    comment="readings",
    source=Delta("silver.by_minute", changes=True),
    schema="key BINARY, minute TIMESTAMP",
    temporary=True,
)
