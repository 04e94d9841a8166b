"""An aggregate has its bucket."""

from include.spec import Bucket, Delta, Table, Upsert

TABLE = Table(
    name="gold.by_minute",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, minute TIMESTAMP, offset BIGINT",
    write=Upsert(keys=("key", "minute"), recompute=Bucket("minute", of="timestamp", unit="minute")),
    time_column="minute",
)
