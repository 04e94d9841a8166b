"""A column stands there twice."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, key STRING",
)
