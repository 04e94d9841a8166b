"""A step has no quarantine."""

from include.spec import Delta, Expect, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    temporary=True,
    expect=(Expect("known", "key IS NOT NULL"),),
)
