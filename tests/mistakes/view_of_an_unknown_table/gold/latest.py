"""A typing error."""

from include.spec import Delta, Replace, Table

TABLE = Table(
    name="gold.latest",
    comment="readings",
    source=Delta("bronze.event"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Replace(),
)
