"""Reads the changes of a view."""

from include.spec import Delta, Table, Upsert

TABLE = Table(
    name="gold.readings",
    comment="readings",
    source=Delta("silver.latest", changes=True),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Upsert(keys=("key",)),
)
