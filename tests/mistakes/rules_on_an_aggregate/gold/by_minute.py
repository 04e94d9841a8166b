"""Has a rule on an aggregate."""

from include.spec import Bucket, Delta, Expect, Table, Upsert

TABLE = Table(
    name="gold.by_minute",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, minute TIMESTAMP, offset BIGINT",
    write=Upsert(keys=("key", "minute"), recompute=Bucket("minute", of="timestamp", unit="minute")),
    expect=(Expect("known", "key IS NOT NULL"),),
)
