"""A type is misspelt."""

from include.spec import Delta, Table

TABLE = Table(
    name="silver.unknown_type",
    comment="",
    source=Delta("bronze.events"),
    schema="key STRINGG, offset BIGINT",
)
