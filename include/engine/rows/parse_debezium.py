"""Parses the changes of a database, as Debezium writes them, into typed columns.

The format: https://debezium.io/documentation/reference/stable/connectors/postgresql.html, section "Data change events".
"""

import json
import re
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DateType, StringType, StructType, TimestampNTZType, TimestampType

from include.engine.rows import debezium_values
from include.engine.rows.debezium_values import FIELD, UNITS, Placeholder
from include.engine.rows.parse import cast_error, error, error_list, quoted
from include.engine.values import json_document
from include.spec import Debezium

# The rows of a snapshot without a place lie before all changes, and among each other in the order of their time.
SNAPSHOT_BIGINT = 1_000_000_000_000_000
SNAPSHOT_STRING = "!"
# Lower than each character of a place.
BETWEEN_FIELDS = " "
# Hexadecimal places: `0/16B3748` of PostgreSQL, `00000027:00000ac0:0002` of SQL Server.
HEX_PLACE = r"^[0-9A-Fa-f]{1,16}([:/][0-9A-Fa-f]{1,16})+$"
# More than 20 digits do not occur, and could not be compared.
TOO_LONG = r"[1-9]\d{20}"


def place_in_log(source: Column, parse: Debezium, type_name: str, is_snapshot: Column) -> Column:
    """Returns the place of a change, as BIGINT or as STRING; NULL if its fields are missing, or are no place.

    source: the fields of the event's source as text, and `ts_ms`.
    """
    fields = [field(source, name) for name in parse.places]
    is_missing = reduce(or_, [text.isNull() for text in fields])
    time = F.least(F.coalesce(field(source, "ts_ms").try_cast("bigint"), F.lit(0)), F.lit(SNAPSHOT_BIGINT - 1))
    if type_name == "bigint":
        at, snapshot = _number(fields[0]), time - F.lit(SNAPSHOT_BIGINT)
    else:
        texts = [_ordered(text) for text in fields]
        is_whole = reduce(and_, [text.isNotNull() for text in texts])
        at = F.when(is_whole, F.concat_ws(BETWEEN_FIELDS, *texts))
        snapshot = F.concat(F.lit(SNAPSHOT_STRING), F.lpad(time.cast("string"), 20, "0"))
    return F.when(is_missing & is_snapshot, snapshot).otherwise(at)


def field(source: Column, name: str) -> Column:
    """Returns a field of `source`; NULL if it is missing, or empty as in a snapshot."""
    return F.when(source[name] != "", source[name])


def _number(text: Column) -> Column:
    """Returns the number, or the one that a place of PostgreSQL such as `0/16B3748` stands for."""
    halves = [F.lpad(F.regexp_extract(text, rf"^{half}$", 1), 8, "0") for half in (r"(\w+)/\w+", r"\w+/(\w+)")]
    is_lsn = text.rlike(r"^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$")
    number = F.when(is_lsn, F.conv(F.concat(*halves), 16, 10)).when(text.rlike(r"^-?\d{1,19}$"), text)
    return number.try_cast("bigint")


def _ordered(text: Column) -> Column:
    """Returns a text that orders as its numbers do, hexadecimal or decimal: `bin.999` before `bin.1000`."""
    plain = F.regexp_replace(F.regexp_replace(text, r'[\[\]"\s]', ""), "null", "")
    is_hex = plain.rlike(HEX_PLACE)
    hex_places = _padded(F.lower(plain), "[0-9a-f]", 16)
    return F.when(is_hex, hex_places).when(~plain.rlike(TOO_LONG), _padded(plain, r"\d", 20))


def _padded(text: Column, digit: str, width: int) -> Column:
    """Returns the text with all of its numbers at this width."""
    long = F.regexp_replace(text, rf"({digit}+)", "0" * width + "$1")
    return F.regexp_replace(long, rf"{digit}*({digit}{{{width}}})(?!{digit})", "$1")


OPERATIONS = ("r", "c", "u", "d", "t")
TIME_TYPES = (DateType, TimestampType, TimestampNTZType)
# The operation of a record without a value, which follows a delete.
TOMBSTONE = "tombstone"
ROW = "MAP<STRING, STRING>"
# The same, which tells a number from a string.
VARIANTS = "MAP<STRING, VARIANT>"
# Fields that the transformation ExtractNewRecordState adds to a row.
FLAT_OP, FLAT_DELETED = "__op", "__deleted"
NO_ROW = (
    "no value: it may be all that is sent of a delete. Set delete.tombstone.handling.mode=rewrite, or declare "
    "tombstones=True if it is rewrite-with-tombstone"
)
IS_NO_ROW = " is no JSON object"
IS_NO_EVENT = f"{IS_NO_ROW}, or before, after or source in it is none"
UNSENT = "the database did not send its value, which is large and unchanged: set REPLICA IDENTITY FULL"


def typed(rows: DataFrame, parse: Debezium, schema: StructType, is_partial: bool) -> DataFrame:
    """Returns the changes with a typed column for each name in `parse.into`, `_op`, `_sequence`, `_database_time`,
    `_rescued_data` and `_errors`.

    What is no change event has an error, and NULL in all other columns.
    """
    payload = F.col(f"`{parse.column}`").cast("string")
    times = [name for name in parse.into if isinstance(schema[name].dataType, TIME_TYPES)]
    rows = _with_event(rows, payload, parse, times)
    rows = rows.withColumn("_problem", F.when(payload.isNotNull(), _problem(payload, parse)))
    rows = rows.withColumn("_event", F.when(F.col("_problem").isNull(), F.col("_event")))
    rows = rows.withColumn("_row", debezium_values.decoded(F.col("_event.row"), F.col("_event.fields"), schema, parse))
    time = F.col("_event.source.ts_ms")
    follows_delete = not parse.unwrapped or parse.tombstones
    columns = {
        "_op": F.when(payload.isNull(), TOMBSTONE if follows_delete else None).otherwise(F.col("_event.op")),
        "_sequence": place_in_log(
            F.col("_event.source"), parse, _type_of_places(parse, schema), F.col("_event.op") == "r"
        ),
        "_database_time": F.timestamp_micros(debezium_values.micros(time, F.lit(UNITS["millis"]))),
        "_rescued_data": _others(parse),
    }
    is_no_event = F.when(F.col("_problem").isNotNull(), error(parse.column, F.col("_problem")))
    is_lost_delete = F.when(payload.isNull(), error(parse.column, F.lit(NO_ROW)))
    errors = [is_no_event, *([] if follows_delete else [is_lost_delete]), *_event_errors(parse)]
    errors.append(cast_error("_database_time", time, F.col("_database_time"), "timestamp"))
    placeholder, is_described = Placeholder(parse.placeholder), F.col("_event.fields").isNotNull()
    # Each in a column, because an expression holds a copy of what it uses.
    texts = {name: f"_event_text_{place}" for place, name in enumerate(parse.into)}
    for name, text in texts.items():
        raw = F.col("_row").getItem(name)
        rows = rows.withColumn(text, F.when(~placeholder.matches(raw), raw))
    for name, text in texts.items():
        sent, type_ = F.col(text), schema[name].dataType
        is_text = F.array_contains("_event.strings", name)
        columns[name] = debezium_values.value(sent, _field(name), name, type_, parse, is_described, is_text)
        hint = debezium_values.FORM_UNKNOWN if type_ == BinaryType() and parse.binary is None else ""
        errors.append(cast_error(name, sent, F.col(f"`{name}`"), type_.simpleString(), hint=hint))
        if not is_partial:
            is_unsent = F.col("_row").getItem(name).isNotNull() & sent.isNull()
            errors.append(F.when(is_unsent, error(name, F.lit(UNSENT))))
    rows = rows.withColumns(columns).withColumn("_errors", error_list(errors))
    return rows.drop("_event", "_row", "_problem", *texts.values())


def _type_of_places(parse: Debezium, schema: StructType) -> str:
    is_text = "_sequence" in schema.names and schema["_sequence"].dataType == StringType()
    return "string" if is_text or len(parse.places) > 1 else "bigint"


def _with_event(rows: DataFrame, payload: Column, parse: Debezium, times: list[str]) -> DataFrame:
    """Adds `_event`: `op`, the `row`, the `source` and the row's `fields` in the schema, all as text; `strings`, those
    of `times` that are a string of digits; without `op`, whether the payload is a row as ExtractNewRecordState leaves
    it (`is_flat`).
    """
    suspicious = F.when(_may_have_strings(payload, times), payload)
    if parse.unwrapped:
        rows, event = _with_flat_row(rows, payload, suspicious), _flat_event(parse)
    else:
        rows, event = _with_row(rows, payload, suspicious, parse), _event()
    rows = rows.withColumn("_row", json_document.last_of_each_key(F.col("_row")))
    rows = rows.withColumn("_event_strings", _strings(F.col("_event_variants"), suspicious.isNotNull(), times))
    rows = rows.withColumn("_event", event)
    return rows.drop("_document", "_event_described", "_event_content", "_row", "_event_variants", "_event_strings")


def _may_have_strings(payload: Column, names: list[str]) -> Column:
    """Whether one of the names may have a string of digits. It costs less than a second look at each event."""
    if not names:
        return F.lit(False)
    keys = "|".join(re.escape(json.dumps(name, ensure_ascii=False)) for name in names)
    # What is escaped, in a name or in a value: signs of ASCII only as a rule, but any sign of another name.
    escape = "\\u00" if all(re.fullmatch(r"\w+", name, re.ASCII) for name in names) else "\\"
    return payload.rlike(rf'(?:{keys})\s*:\s*"[\s+-]*\d') | payload.contains(escape)


def _strings(row: Column, is_suspicious: Column, names: list[str]) -> Column:
    """Returns the names whose value is a string. row: `VARIANTS`, of which the last one of a name counts.

    If a suspicious row is NULL, no number of it is known to be one: an object within it may repeat a key.
    """

    def is_string(name: Column) -> Column:
        values = F.filter(F.map_entries(row), lambda entry: entry["key"] == name)
        return F.schema_of_variant(F.get(values, F.size(values) - 1)["value"]) == "STRING"

    all_names = F.array(*map(F.lit, names)).cast("ARRAY<STRING>")
    some = F.when(row.isNotNull(), F.filter(all_names, is_string)).when(is_suspicious, all_names)
    return F.coalesce(some, F.array().cast("ARRAY<STRING>"))


def _with_row(rows: DataFrame, payload: Column, suspicious: Column, parse: Debezium) -> DataFrame:
    """Adds the `_document`, its content, which is one level deeper beside a schema, the `_row`, and its variants.

    suspicious: the payload, where the row may have strings of digits.
    """
    rows = json_document.read(rows, payload, "_document", StructType.fromDDL(_columns_of_event(parse)))
    document = F.col("_document")
    plain = F.struct(*[document[name].alias(name) for name in _fields_of_event(parse)])
    content = F.when(document["payload"].isNotNull(), document["payload"]).otherwise(plain)
    images = f"before {VARIANTS}, after {VARIANTS}"
    variants = F.from_json(suspicious, f"{images}, payload STRUCT<{images}>")
    rows = rows.withColumns({"_event_content": content, "_event_variants": variants})
    shallow = F.struct(F.col("_event_variants.before"), F.col("_event_variants.after"))
    variants = F.when(document["payload"].isNotNull(), F.col("_event_variants.payload")).otherwise(shallow)
    is_delete = F.col("_event_content.op") == "d"
    return rows.withColumns(
        {"_row": _image(F.col("_event_content"), is_delete), "_event_variants": _image(variants, is_delete)}
    )


def _image(images: Column, is_delete: Column) -> Column:
    return F.when(is_delete, images["before"]).otherwise(images["after"])


def _columns_of_event(parse: Debezium) -> str:
    """Returns the columns of an event, as DDL. With its schema, they are one level deeper."""
    event = ", ".join(f"{name}: {type_name}" for name, type_name in _fields_of_event(parse).items())
    described = f"STRUCT<fields: ARRAY<STRUCT<field: STRING, fields: ARRAY<{FIELD}>>>>"
    return f"{event}, schema: {described}, payload: STRUCT<{event}>"


def _fields_of_event(parse: Debezium) -> dict[str, str]:
    source = ", ".join(f"`{name}`: STRING" for name in _names_of_source(parse))
    texts = dict.fromkeys(("op", FLAT_OP, FLAT_DELETED), "STRING")
    return texts | {"before": ROW, "after": ROW, "source": f"STRUCT<{source}>"}


def _event() -> Column:
    document, content = F.col("_document"), F.col("_event_content")
    described_row = F.filter(document["schema"]["fields"], lambda item: item["field"] == "after")
    return F.when(
        document.isNotNull(),
        F.struct(
            content["op"].alias("op"),
            F.col("_row").alias("row"),
            content["source"].alias("source"),
            _named(F.get(described_row, F.lit(0))["fields"]).alias("fields"),
            F.col("_event_strings").alias("strings"),
            F.coalesce(content[FLAT_OP], content[FLAT_DELETED]).isNotNull().alias("is_flat"),
        ),
    )


def _with_flat_row(rows: DataFrame, payload: Column, suspicious: Column) -> DataFrame:
    """Adds the same of a payload that is a row, and the row that is described where it stands beside a schema."""
    rows = json_document.read(rows, payload, "_document")
    described = StructType.fromDDL(f"schema STRUCT<fields: ARRAY<{FIELD}>>, payload {ROW}")
    is_described = _is_described(F.col("_document"))
    rows = json_document.read(rows, F.when(is_described, payload), "_event_described", described)
    row = F.when(is_described, F.col("_event_described.payload")).otherwise(F.col("_document"))
    deeper, plain = F.from_json(suspicious, f"payload {VARIANTS}")["payload"], F.from_json(suspicious, VARIANTS)
    return rows.withColumns({"_row": row, "_event_variants": F.when(is_described, deeper).otherwise(plain)})


def _flat_event(parse: Debezium) -> Column:
    row = F.col("_row")
    op = F.when(row[FLAT_DELETED] == "true", "d").otherwise(F.coalesce(row[FLAT_OP], _op_of_deleted(row)))
    source = [F.coalesce(*[row[key] for key in _flat_names(name)]).alias(name) for name in _names_of_source(parse)]
    return F.when(
        row.isNotNull(),
        F.struct(
            op.alias("op"),
            row.alias("row"),
            F.struct(*source).alias("source"),
            _named(F.col("_event_described.schema.fields")).alias("fields"),
            F.col("_event_strings").alias("strings"),
            F.lit(False).alias("is_flat"),
        ),
    )


def _is_described(row: Column) -> Column:
    """Whether the row is one level deeper, beside its schema. A row may have such columns of its own."""
    is_described = row["payload"].isNotNull() & row["schema"].isNotNull()
    return is_described & F.coalesce(row[FLAT_OP], row[FLAT_DELETED]).isNull()


def _op_of_deleted(row: Column) -> Column:
    """An operation for rows that only tell whether they are deleted."""
    return F.when(row[FLAT_DELETED] == "false", "u")


def _names_of_source(parse: Debezium) -> list[str]:
    return list(dict.fromkeys((*parse.places, "ts_ms")))


def _flat_names(name: str) -> tuple[str, ...]:
    # The other `__ts_ms` is when Debezium processed the change.
    return (f"__source_{name}",) if name == "ts_ms" else (f"__source_{name}", f"__{name}")


def _named(fields: Column) -> Column:
    """Returns the fields whose type says more than the value: it has a name, or is bytes."""
    return F.filter(fields, lambda item: item["name"].isNotNull() | (item["type"] == "bytes"))


def _field(name: str) -> Column:
    return F.get(F.filter("_event.fields", lambda item: item["field"] == name), F.lit(0))


def _others(parse: Debezium) -> Column:
    """Returns the fields of the row that no column takes, as JSON."""
    known = [*parse.into]
    if parse.unwrapped:
        known += [FLAT_OP, FLAT_DELETED, *[key for name in _names_of_source(parse) for key in _flat_names(name)]]
    others = F.map_filter("_event.row", lambda name, _: ~name.isin(*known))
    return F.when(F.size(others) > 0, F.to_json(others))


def _problem(payload: Column, parse: Debezium) -> Column:
    """Returns why the payload is no change event, if so."""
    op, name = F.col("_event.op"), FLAT_OP if parse.unwrapped else "op"
    hint = ": add.fields has to name op" if parse.unwrapped else ""
    why = (
        F.when(F.trim(payload) == "", "it is empty")
        .when(
            F.col("_event").isNull(),
            F.concat(F.lit("it"), json_document.problem(payload, IS_NO_ROW if parse.unwrapped else IS_NO_EVENT)),
        )
        .when(op.isNull() & F.col("_event.is_flat"), "it is a row, which Debezium(unwrapped=True) reads")
        .when(op.isNull(), f"it has no {name}{hint}")
        .when(~op.isin(*OPERATIONS), F.concat(F.lit(f"its {name} is "), quoted(op)))
    )
    return F.concat(quoted(payload), F.lit(" is no change event: "), why)


def _event_errors(parse: Debezium) -> list[Column]:
    op, row = F.col("_event.op"), F.col("_event.row")
    missing = F.lit(None).cast("string")
    for name in reversed(parse.places):
        text = field(F.col("_event.source"), name)
        missing = F.when(text.isNull(), F.lit(f"the change has no source.{name}")).otherwise(missing)
    texts = F.concat_ws(", ", *[F.col(f"_event.source.`{name}`") for name in parse.places])
    no_place = F.concat(quoted(texts), F.lit(f" is no place among the changes, by source.{', '.join(parse.places)}"))
    return [
        F.when((op != "t") & row.isNull(), error(parse.column, F.lit("the change has no row"))),
        F.when(op.isNotNull() & F.col("_sequence").isNull(), error(parse.column, F.coalesce(missing, no_place))),
    ]
