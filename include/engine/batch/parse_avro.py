"""Typed columns out of Avro, without losing a row."""

import json

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import ArrayType, DataType, DateType, MapType, StringType, StructType, TimestampType

from include.engine.batch import schema_registry
from include.engine.batch.parse import cast, cast_error, error, found
from include.spec import Avro
from include.validation.avro_schema import fields, texts

# For a record that it cannot read, from_avro gives one whose fields are all NULL, and it never looks at what follows a
# record. So each is read as the first field of another record, whose second one is this mark.
END = bytes.fromhex("53 4c 55 49 43 45 a7 1e 0f d2 8b 36 c9 74 e5 90")
OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}
SHOWN_BYTES = 20


def typed(rows: DataFrame, parse: Avro, schema: StructType) -> DataFrame:
    """`rows` plus one typed column for each name in `parse.into`, plus `_errors`. One `from_avro` reads a row."""
    value = F.col(parse.column)
    number = schema_registry.schema_id(value) if parse.schemas else F.lit(None).cast("int")
    body = F.concat(schema_registry.payload(value) if parse.schemas else value, F.lit(END))
    schemas = {f"_avro_{place}": one for place, one in enumerate(texts(parse))}
    decoded = {
        name: F.when(F.lit(True) if one is None else number == one, from_avro(body, _whole(text), OPTIONS))
        for name, (one, text) in schemas.items()
    }
    rows = rows.withColumns(decoded)
    rows = rows.withColumns({name: F.when(F.col(name)["end"] == F.lit(END), F.col(name)["value"]) for name in decoded})
    errors = [
        _value_error(value, parse, number, F.coalesce(*[F.when(F.col(name).isNotNull(), True) for name in decoded]))
    ]
    columns = {}
    for name in parse.into:
        want = schema[name].dataType
        raws = [F.col(avro)[name] for avro, (_, text) in schemas.items() if name in fields(text)]
        kinds = [field.dataType for field in rows.select(*raws).schema]
        made = [_column(raw, kind, want) for raw, kind in zip(raws, kinds, strict=True)]
        columns[name] = F.coalesce(*made)
        errors += [cast_error(name, raw, one, want.simpleString()) for raw, one in zip(raws, made, strict=True)]
    return rows.withColumns({**columns, "_errors": found(errors)}).drop(*decoded)


def _whole(text: str) -> str:
    """The schema of a record with the mark after it."""
    end = {"name": "end", "type": {"type": "fixed", "name": "_end", "size": len(END)}}
    value = {"name": "value", "type": json.loads(text)}
    return json.dumps({"type": "record", "name": "_whole", "fields": [value, end]})


def _value_error(value: Column, parse: Avro, number: Column, is_read: Column) -> Column:
    shown = F.concat(F.lit("X'"), F.hex(F.substring(value, 1, SHOWN_BYTES)), F.lit("'"))
    message = F.when(value.isNull(), "no value: a tombstone").when(F.octet_length(value) == 0, "empty")
    if parse.schemas:
        message = message.when(number.isNull(), F.concat(shown, F.lit(" has no schema registry header")))
        unknown = F.concat(F.lit("schema id "), number.cast("string"), F.lit(" is not declared"))
        message = message.when(~number.isin(list(parse.schemas)), unknown)
        what = F.concat(shown, F.lit(" is no Avro of schema id "), number.cast("string"))
    else:
        what = F.concat(shown, F.lit(" is no Avro of its schema"))
    message = message.when(is_read.isNull(), what)
    return F.when(message.isNotNull(), error(parse.column, message))


def _column(raw: Column, kind: DataType, want: DataType) -> Column:
    """The value as the declared type; NULL where it is none, or where other readers could not read it."""
    if isinstance(want, (StructType, ArrayType, MapType)) or isinstance(kind, (StructType, ArrayType, MapType)):
        made = raw if kind.simpleString() == want.simpleString() else raw.try_cast(want)
        return F.when(F.is_valid_utf8(raw.cast("string")), made)
    if isinstance(kind, (TimestampType, DateType)) and kind == want:
        return F.when(F.year(raw).between(1, 9999), raw)
    if kind == want and not isinstance(kind, StringType):
        return raw
    # As text, so that a number with a fraction is no INT.
    text = raw.cast("string")
    return cast(F.when(F.is_valid_utf8(text), text), want.simpleString())
