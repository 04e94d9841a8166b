"""A view is made anew all the time."""

from include.spec import Delta, Replace, Table

TABLE = Table(
    name="gold.latest",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    write=Replace(),
    transform="SELECT key, offset FROM source",
    reset_allowed=True,
)
