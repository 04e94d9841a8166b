"""It is not clear whether values have a header."""

from include.spec import Avro, Delta, Table

V1 = '{"type": "record", "name": "Reading", "fields": [{"name": "device", "type": "string"}]}'
TABLE = Table(
    name="silver.readings",
    comment="readings",
    source=Delta("bronze.events"),
    parse=Avro("value", into=("device",), schemas={1: V1}, schema=V1),
    schema="device STRING, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
)
