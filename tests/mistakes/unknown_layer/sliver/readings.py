"""Its layer is misspelt."""

from include.spec import Delta, Table

TABLE = Table(
    name="sliver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, timestamp TIMESTAMP",
)
