"""A view reads all there is."""

from include.spec import Delta, Replace, Table

TABLE = Table(
    name="gold.latest",
    comment="readings",
    source=Delta("bronze.events", since="2026-03-01T00:00:00Z"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Replace(),
)
