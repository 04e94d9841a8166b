"""A step has no rows to keep current."""

from include.spec import Bucket, Delta, Table, Upsert

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, minute TIMESTAMP, offset BIGINT",
    temporary=True,
    write=Upsert(keys=("key", "minute"), recompute=Bucket("minute", of="timestamp", unit="minute")),
)
