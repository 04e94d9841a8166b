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
        "field_of_an_object_by_a_dot",
        replace(TYPED, schema=f"`device.id` STRING, {TYPED.schema}", parse=Json("value", into=("device.id", "device"))),
        "silver/readings.py: into names 'device.id', and the fields of an object are not named by a dot: name "
        "'device', a STRING column of its schema, and take what is in it with from_json in the transform",
    ),
    case(
        "field_of_an_object_by_a_dot_in_avro",
        replace(
            TYPED,
            schema=f"`device.id` STRING, {TYPED.schema}",
            parse=Avro("value", into=("device.id", "device"), schemas={1: V1}),
        ),
        "silver/readings.py: into names 'device.id', and the fields of an object are not named by a dot: name "
        "'device', a STRUCT column of its schema, and take what is in it in the transform",
    ),
    case(
        "array_of_json",
        replace(TYPED, schema=f"tags array<STRING>, {TYPED.schema}", parse=Json("value", into=("tags", "device"))),
        "silver/readings.py: into names 'tags', a column of type ARRAY, and an object or array is read as text: "
        "declare it STRING, and take what is in it with from_json in the transform",
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
        "\"d' is no schema of a record (Expecting ',' delimiter: line 1 column 87 (char 86)): fix it",
    ),
    case(
        "avro_schema_is_no_record",
        replace(TYPED, parse=Avro("value", into=("device",), schema='"string"')),
        "silver/readings.py: Avro schema '\"string\"' is no schema of a record (it is no record): fix it",
    ),
    case(
        "avro_record_in_itself",
        replace(TYPED, parse=Avro("value", into=("device",), schema=V1.replace('"string"', '["null", "Reading"]'))),
        "silver/readings.py: the record Reading of its Avro schema refers to itself, and no column has such a type: "
        "store the value as it is, or let its producer write another schema",
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
        "debezium_times_of_a_column_in_an_unknown_unit",
        replace(TYPED, parse=Debezium("value", into=("device",), integer_times={"device": "seconds"})),
        "silver/readings.py: integer_times of 'device' is 'seconds': there are micros, millis, nanos, days",
    ),
    case(
        "debezium_times_of_an_unknown_column",
        replace(TYPED, parse=Debezium("value", into=("device",), integer_times={"devise": "millis"})),
        "silver/readings.py: integer_times names 'devise', which into does not: did you mean 'device'?",
    ),
    case(
        "debezium_times_of_a_text",
        replace(TYPED, parse=Debezium("value", into=("device",), integer_times={"device": "millis"})),
        "silver/readings.py: integer_times names 'device', which is STRING and no time: take it out",
    ),
    case(
        "debezium_bytes_in_an_unknown_form",
        replace(TYPED, parse=Debezium("value", into=("device",), binary="base32")),
        "silver/readings.py: binary is 'base32': did you mean 'base64'?",
    ),
    case(
        "debezium_placeholder_is_empty",
        replace(TYPED, parse=Debezium("value", into=("device",), placeholder="")),
        "silver/readings.py: placeholder is empty, and so are values: name the unavailable.value.placeholder of the "
        "connector",
    ),
    case(
        "debezium_sequence_is_empty",
        replace(TYPED, parse=Debezium("value", into=("device",), sequence=())),
        "silver/readings.py: sequence is empty: name the fields of source that order the changes",
    ),
    case(
        "debezium_sequence_is_repeated",
        replace(TYPED, parse=Debezium("value", into=("device",), sequence=("pos", "pos"))),
        "silver/readings.py: sequence names 'pos' twice: take one of them out",
    ),
    case(
        "debezium_sequence_does_not_order",
        replace(TYPED, parse=Debezium("value", into=("device",), sequence="gtid")),
        "silver/readings.py: sequence names 'gtid', which does not order the changes: name a position in the log",
    ),
    case(
        "debezium_sequence_of_several_fields_is_a_number",
        replace(
            TYPED,
            schema=f"{TYPED.schema}, _sequence BIGINT",
            parse=Debezium("value", into=("device",), sequence=("file", "pos")),
        ),
        "silver/readings.py: column '_sequence' is BIGINT, and the place of a change by file and pos is a text: "
        "declare it STRING",
    ),
    case(
        "debezium_sequence_of_text_is_a_number",
        replace(
            TYPED,
            schema=f"{TYPED.schema}, _sequence BIGINT",
            parse=Debezium("value", into=("device",), sequence="change_lsn"),
        ),
        "silver/readings.py: column '_sequence' is BIGINT, and the place of a change by change_lsn is a text: declare "
        "it STRING",
    ),
    case(
        "debezium_sequence_is_a_time",
        replace(
            TYPED,
            schema=f"{TYPED.schema}, _sequence TIMESTAMP",
            parse=Debezium("value", into=("device",)),
        ),
        "silver/readings.py: column '_sequence' is TIMESTAMP, which no place of a change is: declare it BIGINT "
        "or STRING",
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
