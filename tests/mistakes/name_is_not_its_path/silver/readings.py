"""Its name is not its path."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.reading",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
