"""Formats whose files say the types of their columns."""

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import reduce
from operator import and_

import pyarrow
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from include.engine.files.formats.avro_header import ELEMENT
from include.engine.files.formats.columns import Columns, FileColumn, fits, is_storable
from include.engine.files.formats.format import (
    BYTES,
    TEXT,
    FileGroup,
    FileHeader,
    Format,
    Resolve,
    any_of,
    reader,
    with_row_numbers,
    with_values,
)
from include.engine.values.cast import within_years
from include.spec import Files

NESTED = (T.ArrayType, T.MapType, T.StructType)
# Spark's default would cut a time to milliseconds.
TIMES_AS_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}


class TypedFormat(Format):
    """A format that Spark knows by this name, and whose files share their types if their heads have the same `kind`."""

    name: str

    def rows(
        self, spark: SparkSession, source: Files, groups: Sequence[FileGroup], resolve: Resolve
    ) -> list[DataFrame]:
        schemas = [(files, reader(spark).format(self.name).load(files.uris[0]).schema) for files in groups]
        columns = resolve(
            [
                FileColumn(field.name, _time_type(files.head, field), files.head.path, len(files.heads))
                for files, schema in schemas
                for field in schema
            ]
        )
        return [self._records(spark, files, schema, columns) for files, schema in schemas]

    def numbered(self, rows: DataFrame) -> DataFrame:
        """Adds `PATH` and `_index`."""
        return with_row_numbers(rows).withColumnRenamed("_row", "_index")

    def _records(self, spark: SparkSession, files: FileGroup, schema: T.StructType, columns: Columns) -> DataFrame:
        """Reads files that share a schema. A value that its column cannot hold is rescued."""
        cells = [f"c{index}" for index in range(len(schema))]
        # By position, because its columns may have any name, also those that are added here.
        rows = self.numbered(reader(spark).format(self.name).schema(schema).load(list(files.uris)).toDF(*cells))
        values: dict[str, Column] = {}
        rescued: dict[str, Column] = {}
        for cell, file_field in zip(cells, schema, strict=True):
            name, type_, value = file_field.name, _time_type(files.head, file_field), F.col(cell)
            field = columns.of(name, type_) or columns.of(name, file_field.dataType) or columns.similar(name, type_)
            if field and field.name not in values:
                values[field.name], is_exact = _converted(value, file_field.dataType, field.dataType)
                if is_exact is not None:
                    rescued[name] = F.when(value.isNotNull() & ~is_exact, _as_json(value, file_field.dataType))
            elif field or not columns.leaves_out(name):
                text = file_field.dataType == TEXT or not is_storable(file_field.dataType)
                rescued[name] = _as_json(value.cast("string"), TEXT) if text else value
        if not rescued:
            return with_values(rows, values, F.lit(None).cast("string"))
        needs_rescue = any_of([value.isNotNull() for value in rescued.values()])
        rescued_struct = F.struct(*[value.alias(name) for name, value in rescued.items()])
        return with_values(rows, values, F.when(needs_rescue, F.to_json(rescued_struct, TIMES_AS_JSON)))


def _time_type(head: FileHeader, field: T.StructField) -> T.DataType:
    """Returns the type of a file's column. Spark reads times in nanoseconds as LONG."""
    return _with_times(field.dataType, (field.name,), head.nanoseconds)


def _with_times(type_: T.DataType, place: tuple[str, ...], nanoseconds: Collection[tuple[str, ...]]) -> T.DataType:
    def part(inner: T.DataType, name: str = ELEMENT) -> T.DataType:
        return _with_times(inner, (*place, name), nanoseconds)

    match type_:
        case T.LongType() if place in nanoseconds:
            return T.TimestampType()
        case T.ArrayType():
            return T.ArrayType(part(type_.elementType), type_.containsNull)
        case T.MapType():
            return T.MapType(type_.keyType, part(type_.valueType), type_.valueContainsNull)
        case T.StructType():
            fields = [T.StructField(field.name, part(field.dataType, field.name), field.nullable) for field in type_]
            return T.StructType(fields)
        case _:
            return type_


def _in_micros(value: Column, type_: T.DataType, stored: T.DataType) -> tuple[Column, Column]:
    """Returns a value with the times that `stored` has in place of nanoseconds, and whether they are exact."""

    def part(
        inner: T.DataType, inner_stored: T.DataType
    ) -> tuple[Callable[[Column], Column], Callable[[Column], Column]]:
        return (
            lambda item: _in_micros(item, inner, inner_stored)[0],
            lambda item: item.isNull() | _in_micros(item, inner, inner_stored)[1],
        )

    match type_, stored:
        case T.LongType(), T.TimestampType():
            # Of a value between two microseconds, the earlier one.
            rest = F.pmod(value, F.lit(1_000))
            return F.timestamp_micros(F.call_function("div", value - rest, F.lit(1_000))), rest == 0
        case T.ArrayType(), T.ArrayType():
            convert, is_exact = part(type_.elementType, stored.elementType)
            return F.transform(value, convert), F.forall(value, is_exact)
        case T.MapType(), T.MapType():
            convert, is_exact = part(type_.valueType, stored.valueType)
            return F.transform_values(value, lambda _, item: convert(item)), F.forall(F.map_values(value), is_exact)
        case T.StructType(), T.StructType():
            parts = [(value[of.name], *part(of.dataType, to.dataType)) for of, to in zip(type_, stored, strict=True)]
            fields = [convert(item).alias(to.name) for (item, convert, _), to in zip(parts, stored, strict=True)]
            are_exact = reduce(and_, [is_exact(item) for item, _, is_exact in parts])
            return F.when(value.isNotNull(), F.struct(*fields)), are_exact
        case _:
            return value, F.lit(True)


def _converted(value: Column, type_: T.DataType, stored: T.DataType) -> tuple[Column, Column | None]:
    """Returns the value as the stored type, NULL if that cannot hold any of it, and whether it is exact; None if all
    values are.
    """
    if isinstance(type_, T.LongType) and isinstance(stored, T.TimestampType):
        # Of a value between two microseconds, the earlier one is stored, and the nanoseconds are rescued.
        return _in_micros(value, type_, stored)
    if isinstance(type_, NESTED) and not fits(type_, stored):
        # `stored` has times where the file has nanoseconds.
        times, is_exact = _in_micros(value, type_, stored)
        is_sound = _is_sound(value, type_)
        is_exact = is_exact if is_sound is None else is_exact & is_sound
        return F.when(is_exact, times), is_exact
    if stored == TEXT and type_ == TEXT:
        text = F.try_validate_utf8(value)
        return text, text.isNotNull()
    if isinstance(stored, (T.DateType, T.TimestampType)) and type_ == stored:
        readable = within_years(value, stored.simpleString())
        return readable, readable.isNotNull()
    if fits(type_, stored):
        is_sound = _is_sound(value, type_)
        return value.cast(stored) if is_sound is None else F.when(is_sound, value.cast(stored)), is_sound
    number = value.try_cast(stored)
    is_exact = F.coalesce(number.try_cast(type_) == value, F.lit(False))
    return F.when(is_exact, number), is_exact


def _is_sound(value: Column, type_: T.DataType) -> Column | None:
    """Whether all texts within are UTF-8, and all times in the years 1 to 9999; None for a type without these."""

    def all_of(items: Column, item_type: T.DataType) -> Column | None:
        return None if _is_sound(items, item_type) is None else F.forall(items, lambda item: _or_null(item, item_type))

    match type_:
        case T.StringType():
            return F.is_valid_utf8(value)
        case T.DateType() | T.TimestampType():
            return within_years(value, type_.simpleString()).isNotNull()
        case T.ArrayType():
            return all_of(value, type_.elementType)
        case T.MapType():
            parts = [all_of(F.map_keys(value), type_.keyType), all_of(F.map_values(value), type_.valueType)]
        case T.StructType():
            parts = [
                None
                if _is_sound(value[field.name], field.dataType) is None
                else _or_null(value[field.name], field.dataType)
                for field in type_
            ]
        case _:
            return None
    known = [part for part in parts if part is not None]
    return reduce(and_, known) if known else None


def _or_null(value: Column, type_: T.DataType) -> Column:
    is_sound = _is_sound(value, type_)
    return value.isNull() | (F.lit(True) if is_sound is None else is_sound)


def _as_json(value: Column, type_: T.DataType) -> Column:
    """Returns a value that its column cannot hold, in a form that JSON can. Bytes that are no UTF-8 are Latin-1."""
    match type_:
        case T.StringType():
            return F.coalesce(F.try_validate_utf8(value), F.decode(value.cast("binary"), BYTES))
        case T.DateType() | T.TimestampType():
            return value.cast("string")
        case T.ArrayType():
            return F.transform(value, lambda item: _as_json(item, type_.elementType))
        case T.MapType():
            return F.transform_values(value, lambda _, item: _as_json(item, type_.valueType))
        case T.StructType() if len(type_):
            fields = [_as_json(value[field.name], field.dataType).alias(field.name) for field in type_]
            return F.when(value.isNotNull(), F.struct(*fields))
        case _:
            return value


def nanoseconds(type_: pyarrow.DataType, place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Yields the places of times in nanoseconds: names of fields, and `ELEMENT` for elements of a list or a map."""
    if pyarrow.types.is_timestamp(type_) and type_.unit == "ns":
        yield place
    elif pyarrow.types.is_struct(type_):
        for field in type_:
            yield from nanoseconds(field.type, (*place, field.name))
    elif pyarrow.types.is_map(type_):
        yield from nanoseconds(type_.item_type, (*place, ELEMENT))
    elif pyarrow.types.is_list(type_) or pyarrow.types.is_large_list(type_):
        yield from nanoseconds(type_.value_type, (*place, ELEMENT))
