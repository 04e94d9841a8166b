"""Nobody could say which."""

from include.spec import Delta, Expect, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    expect=(Expect("", "key IS NOT NULL"),),
)
