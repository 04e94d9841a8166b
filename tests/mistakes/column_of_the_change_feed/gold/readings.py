"""Right: reads changes."""

from include.spec import Delta, Table

TABLE = Table(
    name="gold.readings",
    comment="readings",
    source=Delta("silver.readings", changes=True),
    schema="key BINARY",
)
