"""The rule looks into the table that it guards."""

from include.rules import references
from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    expect=(references("offset", "silver.readings", "offset"),),
)
