"""Parses Avro into typed columns, without losing a row."""

import json
from collections.abc import Mapping
from functools import reduce
from operator import and_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from include.engine.files.formats.format import BYTES
from include.engine.rows import writer_schemas
from include.engine.rows.parse import cast_error, error, error_list
from include.engine.values.cast import cast, within_years
from include.project.avro import AvroType
from include.spec import Avro, Table

# For an unreadable record `from_avro` returns NULL in all fields, and it ignores bytes after a record. So each record
# is read as the first field of another one, whose second field must be this mark.
END = bytes.fromhex("53 4c 55 49 43 45 a7 1e 0f d2 8b 36 c9 74 e5 90")
RESCUED = "_rescued_data"
OPTIONS = {"mode": "PERMISSIVE", "datetimeRebaseMode": "CORRECTED"}


def typed(rows: DataFrame, table: Table, parse: Avro, schema: StructType) -> DataFrame:
    """Returns `rows` plus a typed column for each name in `parse.into`, plus `_errors`. A table that declares
    `_rescued_data` gets the other fields in it, as JSON.

    schema: of the table. Rows of a stream are read with the schemas of `parse`, other rows also with those that the
    registry knows. Raises RegistryUnreachable, and FlowBroken for a schema that may not evolve.
    """
    if not rows.isStreaming:
        parse = writer_schemas.with_schemas_of(rows, parse)
    value, has_header = F.col(parse.column), parse.schema is None
    schema_id = writer_schemas.schema_id(value) if has_header else F.lit(None).cast("int")
    marked_value = F.concat(writer_schemas.payload(value) if has_header else value, F.lit(END))
    divided = writer_schemas.divide(rows, table, parse, schema)
    schemas = {f"_avro_{index}": id_and_text for index, id_and_text in enumerate(divided.readable)}
    decoded = {
        name: F.when(
            F.lit(True) if declared_id is None else schema_id == declared_id,
            from_avro(marked_value, _with_end_mark(text), OPTIONS),
        )
        for name, (declared_id, text) in schemas.items()
    }
    rows = rows.withColumns(decoded)
    rows = rows.withColumns({name: F.when(F.col(name)["end"] == F.lit(END), F.col(name)["value"]) for name in decoded})
    is_read = _first([F.when(F.col(name).isNotNull(), True) for name in decoded], "boolean")
    written = {avro: AvroType.of(text).fields for avro, (_, text) in schemas.items()}
    columns, errors = _columns(rows, parse, schema, written)
    if RESCUED in schema.fieldNames() and RESCUED not in rows.columns:
        left = {avro: [name for name in written[avro] if name not in parse.into] for avro in schemas}
        texts = [_as_json(rows, avro, names, written[avro]) for avro, names in left.items() if names]
        columns[RESCUED] = _first(texts, "string")
        for avro, names in left.items():
            errors += _rescue_errors(rows, avro, names, written[avro])
    errors = [_value_error(value, parse, schema_id, divided.refused, is_read), *errors]
    return rows.withColumns({**columns, "_errors": error_list(errors)}).drop(*decoded)


def _columns(
    rows: DataFrame, parse: Avro, schema: StructType, written: Mapping[str, Mapping[str, AvroType]]
) -> tuple[dict[str, Column], list[Column]]:
    """Returns the typed columns by name, and their errors. written: the fields of each decoded column of `rows`."""
    columns, errors = {}, []
    for name in parse.into:
        declared_type = schema[name].dataType
        raws = {avro: F.col(avro)[name] for avro in written if name in written[avro]}
        types = [field.dataType for field in rows.select(*raws.values()).schema]
        values = []
        for (avro, raw), type_ in zip(raws.items(), types, strict=True):
            values.append(value(raw, type_, written[avro][name], declared_type))
            shown = value(raw, type_, written[avro][name], StringType())
            # Bytes that are no UTF-8 are shown as far as they can be.
            shown = F.coalesce(shown, raw.cast("string"))
            errors.append(cast_error(name, raw, values[-1], declared_type.simpleString(), shown))
        columns[name] = _first(values, declared_type)
    return columns, errors


def _as_json(rows: DataFrame, avro: str, names: list[str], written: Mapping[str, AvroType]) -> Column:
    """Returns these fields as JSON; NULL if all are NULL."""
    fields = [
        _without_unions(_readable(raw, type_, written[name]), type_, written[name]).alias(name)
        for name, raw, type_ in _fields(rows, avro, names)
    ]
    text = F.to_json(F.struct(*fields), {**JSON, "ignoreNullFields": "true"})
    return F.when(F.col(avro).isNotNull() & (text != "{}"), text)


def _rescue_errors(rows: DataFrame, avro: str, names: list[str], written: Mapping[str, AvroType]) -> list[Column]:
    """Returns the entries of rescued fields with a text that is no UTF-8."""
    message = F.lit("it has text that is no UTF-8: _rescued_data has other characters in its place")
    return [
        F.when(~_has_valid_texts(raw, type_, written[name]), error(name, message))
        for name, raw, type_ in _fields(rows, avro, names)
    ]


def _fields(rows: DataFrame, avro: str, names: list[str]) -> list[tuple[str, Column, DataType]]:
    raws = [F.col(avro)[name] for name in names]
    return [
        (name, raw, field.dataType) for name, raw, field in zip(names, raws, rows.select(*raws).schema, strict=True)
    ]


def _first(values: list[Column], type_: DataType | str) -> Column:
    """Returns the first value that is not NULL; NULL of this type if there is no value."""
    return F.coalesce(*values) if values else F.lit(None).cast(type_)


def _with_end_mark(text: str) -> str:
    """Returns the schema of a record followed by the mark."""
    end = {"name": "end", "type": {"type": "fixed", "name": "_end", "size": len(END)}}
    value = {"name": "value", "type": json.loads(text)}
    return json.dumps({"type": "record", "name": "_whole", "fields": [value, end]})


def _value_error(value: Column, parse: Avro, schema_id: Column, refused: dict[int, str], is_read: Column) -> Column:
    sample, message = writer_schemas.sample(value), F.when(value.isNull(), "no value: a tombstone")
    message = message.when(F.octet_length(value) == 0, "empty")
    unreadable = F.concat(sample, F.lit(" is no Avro of its schema"))
    if parse.schema is None:
        where = "in the schema registry" if parse.registry else "declared"
        message = F.coalesce(message, writer_schemas.problem(value, parse.schemas, refused, where))
        unreadable = F.concat(sample, F.lit(" is no Avro of schema id "), schema_id.cast("string"))
    message = F.coalesce(message, F.when(is_read.isNull(), unreadable))
    return F.when(message.isNotNull(), error(parse.column, message))


# Spark's default would cut a time to milliseconds, and leave out what is NULL.
JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
TIMES = (DateType, TimestampType, TimestampNTZType)
NESTED = (StructType, ArrayType, MapType)


def value(raw: Column, type_: DataType, written: AvroType, declared: DataType) -> Column:
    """Returns a value as the declared type: exactly, or NULL.

    type_: as Spark has decoded it. written: as the schema says. A union of several types is the value of its branch. A
    record, array or map becomes JSON where the column is a STRING.
    """
    if written.is_union and isinstance(type_, StructType):
        # Spark decodes such a union as a structure, with a field for each of its types.
        branches = zip(type_, written.branches, strict=True)
        return F.coalesce(*[value(raw[field.name], field.dataType, branch, declared) for field, branch in branches])
    if isinstance(type_, NESTED):
        if isinstance(declared, StringType):
            # JSON would have other characters in place of bytes that are no UTF-8.
            return F.when(_has_valid_texts(raw, type_, written), F.to_json(_without_unions(raw, type_, written), JSON))
        return _nested(raw, type_, written, declared)
    return _simple(raw, type_, written, declared)


def _simple(raw: Column, type_: DataType, written: AvroType, declared: DataType) -> Column:
    if isinstance(declared, NESTED):
        return F.lit(None).cast(declared)
    if type_ == declared and isinstance(type_, TIMES):
        return within_years(raw, declared.simpleString())
    if type_ == declared and not isinstance(type_, StringType):
        return raw
    if isinstance(type_, FloatType) and isinstance(declared, DoubleType):
        return raw.cast("double")
    if isinstance(type_, LongType) and "nanos" in written.logical and isinstance(declared, TIMES[1:]):
        micros = F.when(F.pmod(raw, F.lit(1_000)) == 0, F.call_function("div", raw, F.lit(1_000)))
        return within_years(F.timestamp_micros(micros).cast(declared), declared.simpleString())
    # Cast as text, so that a number with a fraction is no INT.
    return cast(_valid(raw.cast("string")), declared.simpleString())


def _nested(raw: Column, type_: DataType, written: AvroType, declared: DataType) -> Column:
    """Returns NULL if any value within does not fit."""
    match type_, declared:
        case ArrayType(), ArrayType():
            values = F.transform(raw, lambda item: value(item, type_.elementType, written.items, declared.elementType))
            is_lost = F.zip_with(raw, values, _is_lost)
            return F.when(~F.exists(is_lost, lambda lost: lost), values)
        case MapType(), MapType():
            values = F.transform_values(
                raw, lambda _, item: value(item, type_.valueType, written.items, declared.valueType)
            )
            is_lost = F.zip_with(F.map_values(raw), F.map_values(values), _is_lost)
            return F.when(~F.exists(is_lost, lambda lost: lost) & _are_valid(F.map_keys(raw)), values)
        case StructType(), StructType():
            fields, are_kept = [], raw.isNotNull()
            for field in declared:
                if field.name not in type_.fieldNames():
                    fields.append(F.lit(None).cast(field.dataType).alias(field.name))
                    continue
                item = raw[field.name]
                typed = value(item, type_[field.name].dataType, written.fields[field.name], field.dataType)
                fields.append(typed.alias(field.name))
                are_kept &= item.isNull() | typed.isNotNull()
            return F.when(are_kept, F.struct(*fields))
        case _:
            return F.lit(None).cast(declared)


def _without_unions(raw: Column, type_: DataType, written: AvroType) -> Column:
    """Returns the value with a text for each union in it."""
    if written.is_union and isinstance(type_, StructType):
        return value(raw, type_, written, StringType())
    match type_:
        case ArrayType():
            return F.transform(raw, lambda item: _without_unions(item, type_.elementType, written.items))
        case MapType():
            return F.transform_values(raw, lambda _, item: _without_unions(item, type_.valueType, written.items))
        case StructType():
            fields = [
                _without_unions(raw[field.name], field.dataType, written.fields[field.name]).alias(field.name)
                for field in type_
            ]
            return F.when(raw.isNotNull(), F.struct(*fields))
        case _:
            return raw


def _parts(type_: StructType, written: AvroType) -> list[tuple[str, DataType, AvroType]]:
    """Returns the fields of a record, or the branches of a union. Bytes of a union become text, as its other types."""
    if not written.is_union:
        return [(field.name, field.dataType, written.fields[field.name]) for field in type_]
    types = [StringType() if field.dataType == BinaryType() else field.dataType for field in type_]
    return [(field.name, part, branch) for field, part, branch in zip(type_, types, written.branches, strict=True)]


def _has_valid_texts(raw: Column, type_: DataType, written: AvroType) -> Column:
    """Whether all texts within are UTF-8."""
    match type_:
        case StringType():
            holds = F.is_valid_utf8(raw.cast("string"))
        case ArrayType():
            holds = F.forall(raw, lambda item: _has_valid_texts(item, type_.elementType, written.items))
        case MapType():
            values = F.forall(F.map_values(raw), lambda item: _has_valid_texts(item, type_.valueType, written.items))
            holds = _are_valid(F.map_keys(raw)) & values
        case StructType() if len(type_):
            holds = reduce(and_, [_has_valid_texts(raw[name], part, of) for name, part, of in _parts(type_, written)])
        case _:
            return F.lit(True)
    return raw.isNull() | holds


def _readable(raw: Column, type_: DataType, written: AvroType) -> Column:
    """Returns the value with each text that is no UTF-8 as Latin-1, but keys of maps as they are."""
    match type_:
        case StringType():
            return F.coalesce(_valid(raw.cast("string")), F.decode(raw.cast("binary"), BYTES))
        case ArrayType():
            return F.transform(raw, lambda item: _readable(item, type_.elementType, written.items))
        case MapType():
            # Two keys might become one.
            return F.transform_values(raw, lambda _, item: _readable(item, type_.valueType, written.items))
        case StructType() if len(type_):
            fields = [_readable(raw[name], part, of).alias(name) for name, part, of in _parts(type_, written)]
            return F.when(raw.isNotNull(), F.struct(*fields))
        case _:
            return raw


def _is_lost(raw: Column, typed: Column) -> Column:
    return raw.isNotNull() & typed.isNull()


def _valid(text: Column) -> Column:
    return F.try_validate_utf8(text)


def _are_valid(texts: Column) -> Column:
    return F.forall(texts, lambda text: F.is_valid_utf8(text))
