"""Recomputes from Kafka."""

from include.spec import Bucket, Kafka, Table, Upsert

TABLE = Table(
    name="gold.by_minute",
    comment="readings",
    source=Kafka("events"),
    schema="key BINARY, minute TIMESTAMP, offset BIGINT",
    write=Upsert(keys=("key", "minute"), recompute=Bucket("minute", of="timestamp", unit="minute")),
)
