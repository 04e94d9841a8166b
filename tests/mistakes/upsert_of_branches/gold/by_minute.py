"""Two sources that would overwrite each other's rows."""

from include.spec import Bucket, Delta, Table, Upsert

TABLE = Table(
    name="gold.by_minute",
    comment="readings",
    source={"eu": Delta("bronze.events"), "us": Delta("bronze.more")},
    schema="key BINARY, minute TIMESTAMP, offset BIGINT",
    write=Upsert(keys=("key", "minute"), recompute=Bucket("minute", of="timestamp", unit="minute")),
)
