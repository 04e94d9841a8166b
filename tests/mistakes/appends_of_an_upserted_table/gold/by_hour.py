"""Reads as appends what is upserted."""

from include.spec import Delta, Table

TABLE = Table(
    name="gold.by_hour",
    comment="readings",
    source=Delta("silver.by_minute"),
    schema="key BINARY",
)
