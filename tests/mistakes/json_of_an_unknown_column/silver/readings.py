"""The payload stands elsewhere."""

from include.spec import Delta, Json, Table

TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    schema="device STRING, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
    parse=Json("valu", into=("device",)),
)
