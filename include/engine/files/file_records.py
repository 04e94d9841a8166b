"""The records of files as rows of a bronze table: what has a column there, where they stand, and what has none."""

from collections.abc import Iterable
from functools import reduce
from itertools import chain
from operator import or_

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from include.engine.files.file_headers import RECORD
from include.engine.files.schema_evolution import Columns, Found, is_storable

TEXT = T.StringType()
# Each byte is one character of it, so that nothing is lost where the bytes are no UTF-8.
BYTES = "ISO-8859-1"
# A number that Spark might read as another: with an exponent, or with more digits than a double has.
RISKY = r"[0-9][eE][-+]?[0-9]|(?<![0-9.])(?=[0-9]*[.])[0-9.]{17,}"
CSV_OPTIONS = {
    "multiLine": "true",
    # As in RFC 4180; Spark's default is a backslash.
    "escape": '"',
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": RECORD,
    "columnPruning": "false",
    # By default a NUL after a doubled quote is one.
    "charToEscapeQuoteEscaping": "\ue002",
    # What an empty cell is taken for, and then for NULL; a quoted one is an empty text.
    "nullValue": "\ue000\ue001",
}


def of_csv(
    spark: SparkSession, paths: list[str], names: tuple[str, ...], encoding: str, header: bool, columns: Columns
) -> DataFrame:
    """Files that share a header. encoding: what their byte-order mark says; else they are read byte by byte."""
    raw = [f"c{place}" for place in range(len(names))]
    schema = T.StructType([T.StructField(name, TEXT) for name in (*raw, RECORD)])
    rows = _reader(spark).schema(schema).options(**CSV_OPTIONS, encoding=encoding or BYTES).csv(paths)
    rows = _numbered(rows).withColumn("_index", F.col("_row") - int(header)).filter("_index >= 0")
    text = F.col if encoding else _utf8
    taken: dict[str, Column] = {}
    lost: list[tuple[Column, Column]] = [(F.lit(RECORD), F.coalesce(text(RECORD), F.col(RECORD)))]
    is_lost = [F.col(RECORD).isNotNull()]
    for name, cell in zip(names, raw, strict=True):
        field = columns.of(name, TEXT)
        if field and field.name not in taken:
            taken[field.name] = text(cell)
            # Where there is none although something stands there, it is no UTF-8.
            lost.append((F.lit(name), F.when(text(cell).isNull(), F.col(cell))))
        elif not columns.leaves_out(name):
            lost.append((F.lit(name), F.coalesce(text(cell), F.col(cell))))
            is_lost.append(F.col(cell).isNotNull())
    if not encoding:
        # With something between them, so that two halves of a character do not make a whole one.
        is_lost.append(_utf8(F.concat_ws(",", *raw)).isNull())
    return _rows(rows, taken, F.when(reduce(or_, is_lost), _json(lost)))


def json_lines(spark: SparkSession, paths: list[str]) -> DataFrame:
    """`_line` and what is in it, `_object`: NULL where the line is no JSON object, or names one thing twice."""
    rows = _reader(spark).option("lineSep", "\n").text(paths)
    line = F.when(F.col("value").startswith("\ufeff"), F.expr("substring(value, 2)")).otherwise(F.col("value"))
    rows = _numbered(rows.withColumn("_line", line).filter(F.btrim("_line", F.lit(" \t\r")) != ""))
    readable = F.when(F.is_valid_utf8("_line"), F.col("_line"))
    documents = F.from_json(
        F.concat(F.lit("["), readable, F.lit("]")), "ARRAY<MAP<STRING, STRING>>", {"allowSingleQuotes": "false"}
    )
    rows = rows.withColumn("_documents", documents)
    rows = rows.withColumn("_object", F.when(F.size("_documents") == 1, F.col("_documents")[0]))
    keys = F.map_keys("_object")
    is_clear = F.size(keys) == F.size(F.array_distinct(keys))
    return rows.withColumn("_object", F.when(is_clear, F.col("_object"))).withColumn("_index", F.col("_row"))


def json_keys(lines: DataFrame) -> list[Found]:
    """The keys of all objects, each with a file that has it."""
    keys = lines.select(F.explode(F.map_keys("_object")).alias("name"), "_path")
    found = keys.groupBy("name").agg(F.min("_path").alias("file")).orderBy("name").collect()
    return [Found(row["name"], TEXT, row["file"]) for row in found]


def of_json(lines: DataFrame, keys: Iterable[str], columns: Columns) -> DataFrame:
    """keys: all that occur. Of several that differ in case only, the first of an object's is its column."""
    spellings: dict[str, list[str]] = {}
    dropped = []
    # First the one that is written as the column is.
    for key in sorted(keys, key=lambda key: (field := columns.of(key, TEXT)) is None or field.name != key):
        if field := columns.of(key, TEXT):
            spellings.setdefault(field.name, []).append(key)
        elif columns.leaves_out(key):
            dropped.append(key)
    item = F.col("_object")
    taken = {name: F.coalesce(*[item[key] for key in same]) for name, same in spellings.items()}
    placed = [key for same in spellings.values() for key in same]
    rest = F.map_filter(item, lambda key, _: ~key.isin([*placed, *dropped]))
    nothing = F.create_map().cast("MAP<STRING, STRING>")
    for same in spellings.values():
        for place, key in enumerate(same[1:], start=1):
            is_second = reduce(or_, [item[one].isNotNull() for one in same[:place]]) & item[key].isNotNull()
            rest = F.map_concat(rest, F.when(is_second, F.create_map(F.lit(key), item[key])).otherwise(nothing))
    raw = F.coalesce(F.try_validate_utf8("_line"), F.decode(F.col("_line").cast("binary"), BYTES))
    rest = F.map_concat(rest, F.when(F.col("_line").rlike(RISKY), F.create_map(F.lit(RECORD), raw)).otherwise(nothing))
    lost = F.when(item.isNull(), _json([(F.lit(RECORD), raw)])).when(F.size(rest) > 0, F.to_json(rest))
    return _rows(lines, taken, lost)


def parquet_schema(spark: SparkSession, path: str) -> T.StructType:
    """As Spark reads that file."""
    return _reader(spark).parquet(path).schema


def of_parquet(spark: SparkSession, paths: list[str], schema: T.StructType, columns: Columns) -> DataFrame:
    """Files that share a schema."""
    rows = _reader(spark).schema(schema).parquet(*paths)
    rows = rows.withColumns({"_path": F.col("_metadata.file_path"), "_index": F.col("_metadata.row_index")})
    taken: dict[str, Column] = {}
    lost: dict[str, Column] = {}
    for one in schema:
        value, field = F.col(f"`{one.name}`"), columns.of(one.name, one.dataType)
        if field:
            taken[field.name] = value.cast(field.dataType)
        elif not columns.leaves_out(one.name):
            lost[one.name] = value if is_storable(one.dataType) else value.cast("string")
    if not lost:
        return _rows(rows, taken, F.lit(None).cast("string"))
    is_lost = reduce(or_, [value.isNotNull() for value in lost.values()])
    named = F.struct(*[value.alias(name) for name, value in lost.items()])
    return _rows(rows, taken, F.when(is_lost, F.to_json(named)))


def _reader(spark: SparkSession) -> DataFrameReader:
    # A name may hold a `*`, and beside such a name Spark reads the others twice, unless it looks at each by itself.
    return spark.read.option("__globPaths__", "false").option("recursiveFileLookup", "true")


def _numbered(rows: DataFrame) -> DataFrame:
    """`_path` and `_row`, the number of the row in its file. The pieces of a file are in order, and so is each."""
    rows = rows.select(
        "*",
        F.col("_metadata.file_path").alias("_path"),
        F.col("_metadata.file_block_start").alias("_piece"),
        F.monotonically_increasing_id().alias("_place"),
    )
    order = Window.partitionBy("_path").orderBy("_piece", "_place")
    return rows.withColumn("_row", (F.row_number().over(order) - 1).cast("bigint")).drop("_piece", "_place")


def _rows(rows: DataFrame, taken: dict[str, Column], lost: Column) -> DataFrame:
    own = [F.col("_path"), F.col("_index"), lost.alias("_rescued_data")]
    return rows.select(*[value.alias(name) for name, value in taken.items()], *own)


def _utf8(text: Column | str) -> Column:
    """What the bytes say that were read as `BYTES`; NULL where they are no UTF-8."""
    return F.try_validate_utf8(F.encode(text, BYTES).cast("string"))


def _json(entries: list[tuple[Column, Column]]) -> Column:
    """The entries that have a value."""
    return F.to_json(F.map_filter(F.create_map(*chain(*entries)), lambda _, value: value.isNotNull()))
