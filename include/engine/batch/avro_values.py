"""Types the values of an Avro record, by the schema with which they were written."""

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
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

from include.engine.values.cast import cast, within_years
from include.project.avro import AvroType

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
            return _valid(F.to_json(_without_unions(raw, type_, written), JSON))
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


def _is_lost(raw: Column, typed: Column) -> Column:
    return raw.isNotNull() & typed.isNull()


def _valid(text: Column) -> Column:
    return F.try_validate_utf8(text)


def _are_valid(texts: Column) -> Column:
    return F.forall(texts, lambda text: F.is_valid_utf8(text))
