"""No time at all."""

from include.spec import Append, Delta, Table, Watermark

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Append(unique=("key",), watermark=Watermark("timestamp", minutes=0)),
)
