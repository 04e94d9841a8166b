"""Right, beside wrong ones."""

from include.spec import Delta, Expect, Table

TABLE = Table(
    name="silver.right",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    expect=(Expect("keyed", "key IS NOT NULL"),),
)
