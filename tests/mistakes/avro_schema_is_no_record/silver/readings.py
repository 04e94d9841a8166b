"""A text has no fields."""

from include.spec import Avro, Delta, Table

V1 = '{"type": "record", "name": "Reading", "fields": [{"name": "device", "type": "string"}]}'
TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    parse=Avro("value", into=("device",), schema='"string"'),
    schema="device STRING, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
)
