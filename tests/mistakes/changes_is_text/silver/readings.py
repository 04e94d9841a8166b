"""changes has to be True or False."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events", changes="yes"),
    schema="key BINARY, offset BIGINT",
)
