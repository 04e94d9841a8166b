"""Nobody could put a row back."""

from include.spec import Delta, Expect, Replace, Table

TABLE = Table(
    name="gold.latest",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Replace(),
    expect=(Expect("keyed", "key IS NOT NULL"),),
)
