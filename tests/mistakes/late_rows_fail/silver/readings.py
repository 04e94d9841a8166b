"""A late row cannot end the flow."""

from include.spec import Append, Delta, Table, Watermark

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Append(unique=("key",), watermark=Watermark("timestamp", minutes=30, late="fail")),
)
