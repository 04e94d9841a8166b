"""The SQL misspells a column."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.unknown_column_in_sql",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    transform="SELECT key, source.ofset AS offset FROM source",
)
