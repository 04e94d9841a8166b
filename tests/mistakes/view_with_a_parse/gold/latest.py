"""A view does not type what arrives."""

from include.spec import Delta, Json, Replace, Table

TABLE = Table(
    name="gold.latest",
    comment="readings",
    source=Delta("bronze.events"),
    schema="key BINARY, offset BIGINT, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
    write=Replace(),
    parse=Json("value", into=("key",)),
)
