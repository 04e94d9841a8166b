"""Below what the vacuum guard may need."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    properties={"delta.deletedFileRetentionDuration": "interval 1 hour"},
)
