"""Parses JSON or text into typed columns, without losing a row."""

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import StringType, StructField, StructType

from include.engine.rows import json_schema, writer_schemas
from include.engine.values import json_document
from include.engine.values.cast import cast
from include.spec import Cast, Json, Table
from include.spec.origin import ORIGIN

SHOWN_CHARACTERS = 80
VIOLATION_TYPE = "STRUCT<field: STRING, message: STRING>"
ERROR_TYPE = f"ARRAY<{VIOLATION_TYPE}>"


def typed(rows: DataFrame, table: Table, parse: Json | Cast, schema: StructType) -> DataFrame:
    """Returns `rows` plus a typed column for each name in `parse.into`, plus `_errors`.

    schema: of the table. With a registry, it raises as `parse_avro.typed` does.
    """
    return _from_json(rows, table, parse, schema) if isinstance(parse, Json) else _from_text(rows, parse, schema)


def strict(rows: DataFrame) -> DataFrame:
    """Returns typed rows with the same columns; the first row with an error fails the query, with its origin."""
    where = [F.concat(F.lit(f"{name} "), F.col(name).cast("string")) for name in ORIGIN if name in rows.columns]
    first = F.col("_errors")[0]
    message = F.concat_ws(", ", *where, F.concat(F.lit("field "), first["field"], F.lit(": "), first["message"]))
    # Inside the column, because the optimizer would remove an unused expression.
    return rows.withColumn("_errors", F.when(F.size("_errors") > 0, F.raise_error(message)).otherwise(F.col("_errors")))


def _from_text(rows: DataFrame, parse: Cast, schema: StructType) -> DataFrame:
    columns, errors = {}, []
    for name in parse.into:
        raw, type_name = F.col(f"`{name}`"), schema[name].dataType.simpleString()
        columns[name] = cast(raw, type_name)
        errors.append(cast_error(name, raw, columns[name], type_name))
    return rows.withColumns({**columns, "_errors": error_list(errors)})


def _from_json(rows: DataFrame, table: Table, parse: Json, schema: StructType) -> DataFrame:
    """Reads every field as text; the casts follow, so that errors can name the refused text."""
    types = {name: schema[name].dataType.simpleString() for name in parse.into}
    value = F.col(parse.column)
    payload = value
    if parse.header or parse.registry:
        payload = F.when(writer_schemas.schema_id(value).isNull(), value).otherwise(writer_schemas.payload(value))
    payload = payload.cast("string")
    value_error = _payload_error(payload, parse.column)
    if parse.registry:
        no_schema, violation = _schema_errors(rows, table, parse, schema, payload)
        payload = F.when(no_schema.isNull(), payload)
        value_error = F.coalesce(no_schema, value_error, violation)
    texts = StructType([StructField(name, StringType()) for name in parse.into])
    rows = json_document.read(rows, payload, "_json", texts)
    errors = [value_error]
    for name, type_name in types.items():
        raw = F.col("_json")[name]
        rows = rows.withColumn(name, cast(raw, type_name))
        errors.append(cast_error(name, raw, F.col(name), type_name))
    return rows.withColumn("_errors", error_list(errors)).drop("_json")


def _schema_errors(
    rows: DataFrame, table: Table, parse: Json, schema: StructType, payload: Column
) -> tuple[Column, Column]:
    """Returns why no schema reads a value, and how it breaks its schema: both NULL for a valid one."""
    if not rows.isStreaming:
        parse = writer_schemas.with_schemas_of(rows, parse)
    divided = writer_schemas.divide(rows, table, parse, schema)
    value = F.col(parse.column)
    message = writer_schemas.problem(value, parse.schemas, divided.refused, "in the schema registry")
    no_schema = F.when(message.isNotNull(), error(parse.column, message))
    readable = {schema_id: text for schema_id, text in divided.readable if schema_id is not None}
    if not readable:
        return no_schema, F.lit(None).cast(VIOLATION_TYPE)
    errors = json_schema.errors_by_schema(readable, parse.column)
    # Spark's own types demand the kind of the function, and Spark warns where it is given beside annotations.
    validate = arrow_udf(errors, VIOLATION_TYPE)  # type: ignore[call-overload]
    document = F.when(F.is_valid_utf8(payload), json_document.without_byte_order_mark(payload))
    return no_schema, validate(writer_schemas.schema_id(value), document)


def cast_error(
    name: str, raw: Column, value: Column, type_name: str, shown: Column | None = None, hint: str = ""
) -> Column:
    """Returns the entry of a value that could not be cast. shown: the raw value as text, if a cast does not make it.
    hint: ends the message.
    """
    is_refused = raw.isNotNull() & value.isNull()
    text = quoted(raw if shown is None else shown)
    return F.when(is_refused, error(name, F.concat(text, F.lit(f" is no {type_name.upper()}{hint}"))))


def error_list(errors: list[Column]) -> Column:
    none = F.array().cast(ERROR_TYPE)
    # Spark generates no code for `filter` and what it contains. Most rows have no error and need none of it.
    has_error = reduce(or_, [item.isNotNull() for item in errors])
    return F.when(has_error, F.filter(F.array(*errors), lambda item: item.isNotNull()).cast(ERROR_TYPE)).otherwise(none)


def _payload_error(payload: Column, column: str) -> Column:
    why = (
        F.when(payload.isNull(), error(column, F.lit("no value: a tombstone")))
        .when(F.trim(payload) == "", error(column, F.lit("empty")))
        .otherwise(error(column, F.concat(quoted(payload), json_document.problem(payload))))
    )
    return F.when(F.col("_json").isNull(), why)


def error(field: str, message: Column) -> Column:
    return F.struct(F.lit(field).alias("field"), message.alias("message"))


def quoted(raw: Column) -> Column:
    return F.concat(F.lit("'"), F.substring(F.make_valid_utf8(raw.cast("string")), 1, SHOWN_CHARACTERS), F.lit("'"))
