"""Every row is in the view before."""

from include.rules import unique
from include.spec import Delta, Replace, Table

TABLE = Table(
    name="gold.latest",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    write=Replace(),
    expect=(unique("key", otherwise="drop"),),
)
