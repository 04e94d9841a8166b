"""A view is never made again in part."""

from include.spec import Delta, Replace, Table

TABLE = Table(
    name="gold.latest",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Replace(),
    transform="SELECT key, offset, timestamp FROM source",
    time_column="timestamp",
)
