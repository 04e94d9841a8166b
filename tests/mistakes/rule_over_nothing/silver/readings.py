"""The set is empty."""

from include.rules import one_of
from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
    expect=(one_of("offset", []),),
)
