"""Parses the changes of a database, as Debezium writes them, into typed columns.

The format: https://debezium.io/documentation/reference/stable/connectors/postgresql.html, section "Data change events".
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, DateType, StructType, TimestampType

from include.engine.batch.parse import cast, cast_error, error, error_list, quoted
from include.spec import Debezium

# What Debezium writes in place of a large value that the change leaves as it is.
NOT_SENT = "__debezium_unavailable_value"
OPERATIONS = ("r", "c", "u", "d", "t")
# The operation of a record without a value, which follows a delete.
TOMBSTONE = "tombstone"
# Integers that are a time in the range of Spark, by unit.
INTEGER_TIME = {"micros": r"^-?\d{1,18}$", "millis": r"^-?\d{1,15}$"}
INTEGER_DATE = r"^-?\d{1,7}$"


def typed(rows: DataFrame, parse: Debezium, schema: StructType, is_partial: bool) -> DataFrame:
    """Returns the changes with a typed column for each name in `parse.into`, `_op`, `_sequence`, `_database_time`,
    `_rescued_data` and `_errors`.
    """
    payload = F.col(f"`{parse.column}`").cast("string")
    rows = rows.withColumn("_event", _event(payload, parse))
    is_delete = F.col("_event.op") == "d"
    rows = rows.withColumn("_row", F.when(is_delete, F.col("_event.before")).otherwise(F.col("_event.after")))
    columns, errors = {}, [_event_error(payload, parse)]
    for name in parse.into:
        raw, type_ = F.col("_row").getItem(name), schema[name].dataType
        sent = F.when(raw != NOT_SENT, raw)
        columns[name] = _value(sent, type_, parse.integer_times)
        errors.append(cast_error(name, sent, columns[name], type_.simpleString()))
        if not is_partial:
            message = "the database did not send its value, which is large and unchanged: set REPLICA IDENTITY FULL"
            errors.append(F.when(raw == NOT_SENT, error(name, F.lit(message))))
    others = F.map_filter("_row", lambda name, _: ~name.isin(*parse.into))
    columns |= {
        "_op": F.when(payload.isNull(), TOMBSTONE).otherwise(F.col("_event.op")),
        "_sequence": F.col(f"_event.source.`{parse.sequence}`").try_cast("bigint"),
        "_database_time": F.timestamp_millis(F.col("_event.source.ts_ms").try_cast("bigint")),
        "_rescued_data": F.when(F.size(others) > 0, F.to_json(others)),
        "_errors": error_list(errors),
    }
    return rows.withColumns(columns).drop("_event", "_row")


def _event(payload: Column, parse: Debezium) -> Column:
    """Returns the fields of an event as text: `op`, `before`, `after` and `source`; NULL if it is none."""
    source = ", ".join(f"`{name}`: STRING" for name in dict.fromkeys((parse.sequence, "ts_ms")))
    row = "MAP<STRING, STRING>"
    event = f"op: STRING, before: {row}, after: {row}, source: STRUCT<{source}>"
    # Wrapped in an array, because Spark stops after one document and ignores what follows.
    documents = F.from_json(
        F.concat(F.lit("["), payload, F.lit("]")),
        f"ARRAY<STRUCT<{event}, payload: STRUCT<{event}>>>",
        {"allowSingleQuotes": "false"},
    )
    # Spark replaces invalid UTF-8, which could make two keys equal.
    document = F.when(F.is_valid_utf8(payload) & (F.size(documents) == 1), documents[0])
    # With its schema, the event is one level deeper.
    plain = F.struct(*[document[name].alias(name) for name in ("op", "before", "after", "source")])
    return F.when(document["payload"].isNotNull(), document["payload"]).otherwise(plain)


def _event_error(payload: Column, parse: Debezium) -> Column:
    is_event = F.coalesce(F.col("_event.op").isin(*OPERATIONS), F.lit(False))
    has_row = F.col("_row").isNotNull() | (F.col("_event.op") == "t")
    return F.when(
        payload.isNotNull(),
        F.when(~is_event, error(parse.column, F.concat(quoted(payload), F.lit(" is no change event"))))
        .when(~has_row, error(parse.column, F.lit("the change has no row")))
        .when(
            F.col(f"_event.source.`{parse.sequence}`").isNull(),
            error(parse.column, F.lit(f"the change has no source.{parse.sequence}")),
        ),
    )


def _value(raw: Column, type_: DataType, integer_times: str) -> Column:
    match type_:
        case TimestampType():
            to_time = F.timestamp_micros if integer_times == "micros" else F.timestamp_millis
            time = to_time(F.when(raw.rlike(INTEGER_TIME[integer_times]), raw).try_cast("bigint"))
            return F.coalesce(time, cast(raw, "timestamp"))
        case DateType():
            date = F.date_from_unix_date(F.when(raw.rlike(INTEGER_DATE), raw).try_cast("int"))
            return F.coalesce(date, cast(raw, "date"))
        case BinaryType():
            return F.try_to_binary(raw, F.lit("base64"))
        case _:
            return cast(raw, type_.simpleString())
