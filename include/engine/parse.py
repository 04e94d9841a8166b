"""Typed columns out of JSON, without losing a row."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.spec import Json

SHOWN_CHARACTERS = 80
CORRUPT = "_corrupt"
ERROR_TYPE = "ARRAY<STRUCT<field: STRING, message: STRING>>"


def typed(rows: DataFrame, parse: Json, schema: StructType) -> DataFrame:
    """`rows` plus one typed column for each name in `parse.into`, plus `_errors`.

    One `from_json` a row reads every field as text; the cast happens after, so that it can say what it refused.
    """
    types = {name: schema[name].dataType.simpleString() for name in parse.into}
    text_schema = ", ".join(f"`{name}` STRING" for name in [*parse.into, CORRUPT])
    payload = F.col(parse.column).cast("string")
    rows = rows.withColumn("_json", F.from_json(payload, text_schema, {"columnNameOfCorruptRecord": CORRUPT}))
    errors = [_payload_error(payload, parse.column)]
    for name, type_name in types.items():
        raw = F.col(f"_json.`{name}`")
        rows = rows.withColumn(name, _cast(raw, type_name))
        errors.append(
            F.when(
                raw.isNotNull() & F.col(name).isNull(),
                _error(name, F.concat(_shown(raw), F.lit(f" is no {type_name.upper()}"))),
            )
        )
    found = F.filter(F.array(*errors), lambda error: error.isNotNull())
    return rows.withColumn("_errors", found.cast(ERROR_TYPE)).drop("_json")


def _payload_error(payload: Column, column: str) -> Column:
    return (
        F.when(payload.isNull(), _error(column, F.lit("no value: a tombstone")))
        .when(F.trim(payload) == "", _error(column, F.lit("empty")))
        .when(
            F.col("_json").isNull() | F.col(f"_json.{CORRUPT}").isNotNull(),
            _error(column, F.concat(_shown(payload), F.lit(" is no JSON object"))),
        )
    )


def _cast(raw: Column, type_name: str) -> Column:
    if type_name.startswith("timestamp"):
        # Spark completes a time of day with today's date, and a replay tomorrow would come out different.
        raw = F.when(raw.rlike(r"^\s*\d{4}-"), raw)
    return raw.try_cast(type_name)


def _error(field: str, message: Column) -> Column:
    return F.struct(F.lit(field).alias("field"), message.alias("message"))


def _shown(raw: Column) -> Column:
    return F.concat(F.lit("'"), F.substring(raw, 1, SHOWN_CHARACTERS), F.lit("'"))
