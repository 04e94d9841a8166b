"""The quarantine has one of that name."""

from include.spec import Delta, Expect, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, _batch BIGINT",
    expect=(Expect("keyed", "key IS NOT NULL"),),
)
