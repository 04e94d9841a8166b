"""Two schedules."""

from include.spec import Delta, Table, Upsert

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Upsert(keys=("key",), in_windows=True),
    schedule="0 3 * * *",
)
