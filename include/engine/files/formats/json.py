"""Files of JSON: an object a line, or documents of several lines."""

from collections.abc import Iterable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import arrow_udf

from include.engine.files.formats import json_documents
from include.engine.files.formats.columns import Columns, FileColumn
from include.engine.files.formats.format import (
    BYTES,
    PATH,
    RECORD,
    TEXT,
    FileGroup,
    Resolve,
    any_of,
    as_json,
    reader,
    with_row_numbers,
    with_values,
)
from include.engine.files.formats.text import TextHead
from include.engine.values import json_document
from include.spec import Files


class Json(TextHead):
    def rows(
        self, spark: SparkSession, source: Files, groups: Sequence[FileGroup], resolve: Resolve
    ) -> list[DataFrame]:
        [files] = groups
        lines = _lines(spark, list(files.uris), source.multi_line)
        keys = _keys(lines)
        return [_values(lines, [key.name for key in keys], resolve(keys))]


def _lines(spark: SparkSession, paths: list[str], is_multi_line: bool) -> DataFrame:
    """Returns `_line`, the path, `_index` and `_object`, which is NULL if the line is no JSON object.

    `_repeats_key` says whether the object repeats a key, of which the last one counts. is_multi_line: `_line` is a
    document of several lines.
    """
    rows = _documents(spark, paths) if is_multi_line else _one_a_line(spark, paths)
    rows = json_document.read(rows, F.col("_line"), "_object")
    rows = rows.withColumn("_repeats_key", json_document.repeats_a_key(F.col("_object")))
    rows = rows.withColumn("_object", json_document.last_of_each_key(F.col("_object")))
    return rows.withColumn("_index", F.col("_row"))


def _one_a_line(spark: SparkSession, paths: list[str]) -> DataFrame:
    rows = reader(spark).option("lineSep", "\n").text(paths)
    line = json_document.without_byte_order_mark(F.col("value"))
    # By bytes: a text that is no UTF-8 has other characters, or would be changed.
    without_cr = F.substring(line.cast("binary"), F.lit(1), F.octet_length(line) - 1).cast("string")
    line = F.when(line.endswith("\r"), without_cr).otherwise(line)
    return with_row_numbers(rows.withColumn("_line", line).filter(F.btrim("_line", F.lit(" \t\r")) != ""))


def _documents(spark: SparkSession, paths: list[str]) -> DataFrame:
    rows = reader(spark).text(paths, wholetext=True)
    documents = arrow_udf(json_documents.of_files, "ARRAY<BINARY>")(F.col("value").cast("binary"))  # type: ignore[call-overload]
    rows = rows.select(rows.metadataColumn("_metadata")["file_path"].alias(PATH), F.posexplode(documents))
    return rows.select(PATH, F.col("pos").cast("bigint").alias("_row"), F.col("col").cast("string").alias("_line"))


def _keys(lines: DataFrame) -> list[FileColumn]:
    """Returns the keys of all objects, each with a file that has it, and how many objects do."""
    keys = lines.select(F.explode(F.map_keys("_object")).alias("name"), PATH)
    groups = keys.groupBy("name").agg(F.min(PATH).alias("file"), F.count("*").alias("count")).orderBy("name")
    return [FileColumn(row["name"], TEXT, row["file"], row["count"]) for row in groups.collect()]


def _values(lines: DataFrame, keys: Iterable[str], columns: Columns) -> DataFrame:
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
            is_second = any_of([item[earlier].isNotNull() for earlier in spelled[:index]]) & item[key].isNotNull()
            rest = F.map_concat(rest, F.when(is_second, F.create_map(F.lit(key), item[key])).otherwise(nothing))
    raw = F.coalesce(F.try_validate_utf8("_line"), F.decode(F.col("_line").cast("binary"), BYTES))
    rest = F.map_concat(rest, F.when(F.col("_repeats_key"), F.create_map(F.lit(RECORD), raw)).otherwise(nothing))
    rescued = F.when(item.isNull(), as_json([(F.lit(RECORD), raw)])).when(F.size(rest) > 0, F.to_json(rest))
    return with_values(lines, values, rescued)
