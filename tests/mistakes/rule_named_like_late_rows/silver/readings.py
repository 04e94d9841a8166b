"""The rule is called as late rows are."""

from include.spec import Append, Delta, Expect, Table, Watermark

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Append(unique=("key",), watermark=Watermark("timestamp", minutes=30)),
    expect=(Expect("later than 30 minutes", "offset > 0"),),
)
