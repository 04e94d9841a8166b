"""Recomputes from a step that sees changes."""

from include.spec import Bucket, Delta, Table, Upsert

TABLE = Table(
    name="gold.by_hour",
    comment="readings",
    source=Delta("silver.changed"),
    schema="key BINARY, hour TIMESTAMP",
    write=Upsert(keys=("key", "hour"), recompute=Bucket("hour", of="minute", unit="hour")),
)
