"""There is no such column."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, time TIMESTAMP",
    time_column="tiem",
)
