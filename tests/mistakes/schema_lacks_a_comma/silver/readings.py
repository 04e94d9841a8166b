"""A comma is missing."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY COMMENT 'the sender' offset BIGINT, timestamp TIMESTAMP",
)
