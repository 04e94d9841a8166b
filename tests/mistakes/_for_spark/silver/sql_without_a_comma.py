"""The SQL does not parse."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.sql_without_a_comma",
    comment="",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT",
    transform="SELECT key, partition topic offset FROM source",
)
