"""Reads no table."""

from include.spec import Replace, Table

TABLE = Table(
    name="gold.latest",
    comment="readings",
    source={},
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Replace(),
    transform="SELECT 1",
)
