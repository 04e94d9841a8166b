"""Reads the records of files as rows of a bronze table: its columns, the path, `_index` and `_rescued_data`."""

from collections.abc import Callable, Collection, Iterable
from functools import reduce
from itertools import chain
from operator import and_, or_

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.functions import arrow_udf

from include.engine.files.avro_header import ELEMENT
from include.engine.files.file_headers import CR_LF, CR_LF_AND_LF, RECORD, FileHeader
from include.engine.files.schema_evolution import Columns, FileColumn, fits, is_storable
from include.engine.python import json_documents
from include.engine.values import json_document
from include.engine.values.cast import within_years
from include.spec import Files

TEXT = T.StringType()
# The column of a line of text.
LINE = "value"
NESTED = (T.ArrayType, T.MapType, T.StructType)
# The column of the file's URI. No column of a file has this name, because nobody can read it.
PATH = "\ue000path"
# Maps each byte to one character, so that bytes that are no UTF-8 survive.
BYTES = "ISO-8859-1"
# Spark's default would cut a time to milliseconds.
TIMES_AS_JSON = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
CSV_OPTIONS = {
    "multiLine": "true",
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": RECORD,
    "columnPruning": "false",
    # By default a NUL after a doubled quote would be an escape.
    "charToEscapeQuoteEscaping": "\ue002",
    # Spark takes an unquoted empty cell for this text, and then for NULL. A quoted one is an empty text.
    "nullValue": "\ue000\ue001",
}


def of_csv(spark: SparkSession, paths: list[str], head: FileHeader, source: Files, columns: Columns) -> DataFrame:
    """Reads files of the same kind. head: of any of them. Without an encoding, cells are decoded one by one."""
    cells = [f"c{index}" for index in range(len(head.names))]
    schema = T.StructType([T.StructField(name, TEXT) for name in (*cells, RECORD)])
    reader = _reader(spark).schema(schema).options(**CSV_OPTIONS, encoding=head.encoding or BYTES)
    # By RFC 4180, a quote escapes itself; Spark's default is a backslash.
    reader = reader.options(sep=source.separator, quote=source.quote, escape=source.escape or source.quote)
    if source.comment:
        reader = reader.option("comment", source.comment)
    if head.line_separator == CR_LF:
        # Otherwise Spark makes a LF of a CR LF within a cell.
        reader = reader.option("lineSep", CR_LF)
    if head.line_separator == CR_LF_AND_LF:
        rows = _without_carriage_returns(reader.option("lineSep", "\n").csv(paths), cells)
    else:
        rows = reader.csv(paths)
    rows = _with_row_numbers(rows)
    rows = rows.withColumn("_index", F.col("_row") - int(source.header)).filter("_index >= 0")
    text = F.col if head.encoding else _utf8
    values: dict[str, Column] = {}
    rescued: list[tuple[Column, Column]] = [(F.lit(RECORD), F.coalesce(text(RECORD), F.col(RECORD)))]
    needs_rescue = [F.col(RECORD).isNotNull()]
    for name, cell in zip(head.names, cells, strict=True):
        field = columns.of(name, TEXT)
        if field and field.name not in values:
            values[field.name] = text(cell)
            # A cell that does not decode is no UTF-8.
            rescued.append((F.lit(name), F.when(text(cell).isNull(), F.col(cell))))
        elif not columns.leaves_out(name):
            rescued.append((F.lit(name), F.coalesce(text(cell), F.col(cell))))
            needs_rescue.append(F.col(cell).isNotNull())
    if not head.encoding:
        # The separator keeps two halves of a character in neighbouring cells from forming one.
        needs_rescue.append(_utf8(F.concat_ws(",", *cells)).isNull())
    return _rows(rows, values, F.when(reduce(or_, needs_rescue), _json(rescued)))


def _without_carriage_returns(rows: DataFrame, cells: list[str]) -> DataFrame:
    """Removes what a line separator of LF leaves of CR LF: one CR at the end of a row, and rows of nothing else."""
    is_blank = F.coalesce(*cells[1:], F.lit("")) == "" if cells[1:] else F.lit(True)
    rows = rows.filter(~(F.col(cells[0]).eqNullSafe("\r") & is_blank))
    return rows.withColumn(cells[-1], F.regexp_replace(cells[-1], "\r\\z", ""))


def json_lines(spark: SparkSession, paths: list[str], is_multi_line: bool) -> DataFrame:
    """Returns `_line`, the path, `_index` and `_object`, which is NULL if the line is no JSON object.

    `_repeats_key` says whether the object repeats a key, of which the last one counts. is_multi_line: `_line` is a
    document of several lines.
    """
    rows = _json_documents(spark, paths) if is_multi_line else _json_lines(spark, paths)
    rows = json_document.read(rows, F.col("_line"), "_object")
    rows = rows.withColumn("_repeats_key", json_document.repeats_a_key(F.col("_object")))
    rows = rows.withColumn("_object", json_document.last_of_each_key(F.col("_object")))
    return rows.withColumn("_index", F.col("_row"))


def _json_lines(spark: SparkSession, paths: list[str]) -> DataFrame:
    rows = _reader(spark).option("lineSep", "\n").text(paths)
    line = json_document.without_byte_order_mark(F.col("value"))
    return _with_row_numbers(rows.withColumn("_line", line).filter(F.btrim("_line", F.lit(" \t\r")) != ""))


def _json_documents(spark: SparkSession, paths: list[str]) -> DataFrame:
    rows = _reader(spark).text(paths, wholetext=True)
    documents = arrow_udf(json_documents.of_files, "ARRAY<BINARY>")(F.col("value").cast("binary"))  # type: ignore[call-overload]
    rows = rows.select(rows.metadataColumn("_metadata")["file_path"].alias(PATH), F.posexplode(documents))
    return rows.select(PATH, F.col("pos").cast("bigint").alias("_row"), F.col("col").cast("string").alias("_line"))


def json_keys(lines: DataFrame) -> list[FileColumn]:
    """Returns the keys of all objects, each with a file that has it, and how many objects do."""
    keys = lines.select(F.explode(F.map_keys("_object")).alias("name"), PATH)
    groups = keys.groupBy("name").agg(F.min(PATH).alias("file"), F.count("*").alias("count")).orderBy("name")
    return [FileColumn(row["name"], TEXT, row["file"], row["count"]) for row in groups.collect()]


def of_json(lines: DataFrame, keys: Iterable[str], columns: Columns) -> DataFrame:
    """Returns the lines as rows. keys: all that occur. If keys of an object differ only in case, its first one fills
    the column.
    """
    spellings: dict[str, list[str]] = {}
    dropped = []
    # The key spelled as the column comes first.
    for key in sorted(keys, key=lambda key: (field := columns.of(key, TEXT)) is None or field.name != key):
        if field := columns.of(key, TEXT):
            spellings.setdefault(field.name, []).append(key)
        elif columns.leaves_out(key):
            dropped.append(key)
    item = F.col("_object")
    values = {name: F.coalesce(*[item[key] for key in spelled]) for name, spelled in spellings.items()}
    column_keys = [key for spelled in spellings.values() for key in spelled]
    rest = F.map_filter(item, lambda key, _: ~key.isin([*column_keys, *dropped]))
    nothing = F.create_map().cast("MAP<STRING, STRING>")
    for spelled in spellings.values():
        for index, key in enumerate(spelled[1:], start=1):
            is_second = reduce(or_, [item[earlier].isNotNull() for earlier in spelled[:index]]) & item[key].isNotNull()
            rest = F.map_concat(rest, F.when(is_second, F.create_map(F.lit(key), item[key])).otherwise(nothing))
    raw = F.coalesce(F.try_validate_utf8("_line"), F.decode(F.col("_line").cast("binary"), BYTES))
    rest = F.map_concat(rest, F.when(F.col("_repeats_key"), F.create_map(F.lit(RECORD), raw)).otherwise(nothing))
    rescued = F.when(item.isNull(), _json([(F.lit(RECORD), raw)])).when(F.size(rest) > 0, F.to_json(rest))
    return _rows(lines, values, rescued)


def text_lines(spark: SparkSession, paths: list[str]) -> DataFrame:
    """Returns `_line`, the path and `_index`. The end of a line is not part of it."""
    rows = _reader(spark).option("lineSep", "\n").text(paths)
    return _with_row_numbers(rows).select(
        F.rtrim("value", F.lit("\r")).alias("_line"), PATH, F.col("_row").alias("_index")
    )


def of_text(lines: DataFrame, columns: Columns) -> DataFrame:
    """Returns the lines as rows. A line that is no UTF-8 is rescued, with one character for each byte."""
    line = F.try_validate_utf8("_line")
    raw = F.when(line.isNull(), F.decode(F.col("_line").cast("binary"), BYTES))
    rescued = [(F.lit(RECORD), raw)]
    field = columns.of(LINE, TEXT)
    if field is None and not columns.leaves_out(LINE):
        rescued.append((F.lit(LINE), line))
    has_rescued = reduce(or_, [value.isNotNull() for _, value in rescued])
    return _rows(lines, {field.name: line} if field else {}, F.when(has_rescued, _json(rescued)))


def schema_of(spark: SparkSession, format_: str, path: str) -> T.StructType:
    """Returns the schema of a file as Spark reads it."""
    return _reader(spark).format(format_).load(path).schema


def of_typed(
    spark: SparkSession, format_: str, paths: list[str], schema: T.StructType, head: FileHeader, columns: Columns
) -> DataFrame:
    """Reads files that share a schema. head: of any of them. A value that its column cannot hold is rescued."""
    cells = [f"c{index}" for index in range(len(schema))]
    # By position, because its columns may have any name, also those that are added here.
    rows = _reader(spark).format(format_).schema(schema).load(paths).toDF(*cells)
    if format_ == "parquet":
        metadata = rows.metadataColumn("_metadata")
        rows = rows.select("*", metadata["file_path"].alias(PATH), metadata["row_index"].alias("_index"))
    else:
        rows = _with_row_numbers(rows).withColumnRenamed("_row", "_index")
    values: dict[str, Column] = {}
    rescued: dict[str, Column] = {}
    for cell, file_field in zip(cells, schema, strict=True):
        name, type_, value = file_field.name, time_type(head, file_field), F.col(cell)
        field = columns.of(name, type_) or columns.of(name, file_field.dataType) or columns.similar(name, type_)
        if field and field.name not in values:
            values[field.name], is_exact = _converted(value, file_field.dataType, field.dataType)
            if is_exact is not None:
                rescued[name] = F.when(value.isNotNull() & ~is_exact, _as_json(value, file_field.dataType))
        elif field or not columns.leaves_out(name):
            text = file_field.dataType == TEXT or not is_storable(file_field.dataType)
            rescued[name] = _as_json(value.cast("string"), TEXT) if text else value
    if not rescued:
        return _rows(rows, values, F.lit(None).cast("string"))
    needs_rescue = reduce(or_, [value.isNotNull() for value in rescued.values()])
    rescued_struct = F.struct(*[value.alias(name) for name, value in rescued.items()])
    return _rows(rows, values, F.when(needs_rescue, F.to_json(rescued_struct, TIMES_AS_JSON)))


def time_type(head: FileHeader, field: T.StructField) -> T.DataType:
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


def _reader(spark: SparkSession) -> DataFrameReader:
    # Names may contain a `*`, with which Spark would read other files twice, unless it does not expand patterns.
    return spark.read.option("__globPaths__", "false").option("recursiveFileLookup", "true")


def _with_row_numbers(rows: DataFrame) -> DataFrame:
    """Adds the path and `_row`, the row's number in its file. Splits of a file are in order, and so are their rows."""
    metadata = rows.metadataColumn("_metadata")
    rows = rows.select(
        "*",
        metadata["file_path"].alias(PATH),
        metadata["file_block_start"].alias("_piece"),
        F.monotonically_increasing_id().alias("_place"),
    )
    order = Window.partitionBy(PATH).orderBy("_piece", "_place")
    return rows.withColumn("_row", (F.row_number().over(order) - 1).cast("bigint")).drop("_piece", "_place")


def _rows(rows: DataFrame, values: dict[str, Column], rescued: Column) -> DataFrame:
    file_columns = [F.col(PATH), F.col("_index"), rescued.alias("_rescued_data")]
    return rows.select(*[value.alias(name) for name, value in values.items()], *file_columns)


def _utf8(text: Column | str) -> Column:
    """Decodes a text that was read as `BYTES`; NULL if its bytes are no UTF-8."""
    return F.try_validate_utf8(F.encode(text, BYTES).cast("string"))


def _json(entries: list[tuple[Column, Column]]) -> Column:
    """Returns the entries that have a value, as a JSON object."""
    return F.to_json(F.map_filter(F.create_map(*chain(*entries)), lambda _, value: value.isNotNull()))
