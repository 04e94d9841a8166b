"""The watermark is a text."""

from include.spec import Append, Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Append(unique=("key",), watermark="timestamp"),
)
