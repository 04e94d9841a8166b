"""Wrong parsing of JSON, Avro or text into typed columns."""

from dataclasses import replace

from include.spec import Avro, Cast, Debezium, Json, Registry, Upsert
from tests.mistakes.case import READINGS, case

V1 = '{"type": "record", "name": "Reading", "fields": [{"name": "device", "type": "string"}]}'
TYPED = replace(READINGS, schema="device STRING, _errors ARRAY<STRUCT<field: STRING, message: STRING>>")

CASES = (
    case(
        "avro_field_is_misspelt",
        replace(TYPED, parse=Avro("value", into=("device",), schemas={1: V1.replace("device", "devise")})),
        "silver/readings.py: into names 'device', which no schema of its Avro has: did you mean 'devise'?",
    ),
    case(
        "avro_schema_by_name",
        replace(TYPED, parse=Avro("value", into=("device",), schemas={"reading-v1": V1})),
        "silver/readings.py: Avro's schemas has the key 'reading-v1': it has to be a whole number",
    ),
    case(
        "avro_schema_is_no_json",
        replace(TYPED, parse=Avro("value", into=("device",), schemas={1: V1[:-1]})),
        'silver/readings.py: Avro schema \'{"type": "record", "name": "Reading", "fields": [{"name": '
        "\"d' is no schema of a record (Expecting ',' delimiter: line 1 column 87 (char 86)): mend it",
    ),
    case(
        "avro_schema_is_no_record",
        replace(TYPED, parse=Avro("value", into=("device",), schema='"string"')),
        "silver/readings.py: Avro schema '\"string\"' is no schema of a record (it is no record): mend it",
    ),
    case(
        "avro_with_two_kinds_of_schemas",
        replace(TYPED, parse=Avro("value", into=("device",), schemas={1: V1}, schema=V1)),
        "silver/readings.py: Avro has both schemas and a schema: name schemas by id or registry=Registry() where "
        "values have a header, else the one schema",
    ),
    case(
        "avro_with_a_registry_and_no_header",
        replace(TYPED, parse=Avro("value", into=("device",), schema=V1, registry=Registry())),
        "silver/readings.py: Avro has a registry, and a schema for values without a header: take one of them out",
    ),
    case(
        "avro_with_a_registry_in_an_aggregate",
        replace(
            TYPED,
            parse=Avro("value", into=("device",), registry=Registry()),
            write=Upsert(keys=("device",)),
        ),
        "silver/readings.py: Avro with a registry in an aggregate or a temporary step: type the rows in a table that "
        "appends them or merges changes, and read that",
    ),
    case(
        "avro_with_a_registry_that_evolves_otherwise",
        replace(TYPED, parse=Avro("value", into=("device",), registry=Registry(evolution="folow"))),
        "silver/readings.py: evolution is 'folow': did you mean 'follow'?",
    ),
    case(
        "avro_without_a_schema",
        replace(TYPED, parse=Avro("value", into=("device",))),
        "silver/readings.py: Avro has neither schemas nor a schema: name schemas by id or registry=Registry() where "
        "values have a header, else the one schema",
    ),
    case(
        "cast_of_an_unknown_column",
        replace(TYPED, parse=Cast(into=("topik",)), schema=TYPED.schema.replace("device STRING", "topik INT")),
        "silver/readings.py: Cast of 'topik', which its source has not: did you mean 'topic'?",
    ),
    case(
        "debezium_times_in_an_unknown_unit",
        replace(TYPED, parse=Debezium("value", into=("device",), integer_times="milis")),
        "silver/readings.py: integer_times is 'milis': did you mean 'millis'?",
    ),
    case(
        "into_is_no_column",
        replace(TYPED, parse=Json("value", into=("devise",))),
        "silver/readings.py: into names 'devise', no column of its schema: did you mean 'device'?",
    ),
    case(
        "json_of_an_unknown_column",
        replace(TYPED, parse=Json("valu", into=("device",))),
        "silver/readings.py: Json of 'valu', which its source has not: did you mean 'value'?",
    ),
    case(
        "parsed_without_errors",
        replace(READINGS, schema="device STRING", parse=Json("value", into=("device",))),
        "silver/readings.py: parse without a column for what cannot be typed: add `_errors ARRAY<STRUCT<field: "
        "STRING, message: STRING>>` to its schema",
    ),
)
