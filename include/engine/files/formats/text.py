"""Files of text: each line is a row."""

import codecs
from collections.abc import Sequence

from pyarrow import fs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.engine.files.formats import text_file
from include.engine.files.formats.columns import Columns, FileColumn
from include.engine.files.formats.format import (
    BYTES,
    PATH,
    RECORD,
    TEXT,
    FileGroup,
    FileHeader,
    Format,
    Resolve,
    any_of,
    as_json,
    empty,
    reader,
    with_row_numbers,
    with_values,
)
from include.spec import Files

# The column of a line of text.
LINE = "value"
# Longest first, because some begin with another.
BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF8, "UTF-8"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


class TextHead(Format):
    """A format of text in UTF-8, whose files have no header."""

    def head(self, system: fs.FileSystem, path: str, source: Files, declared: Sequence[str]) -> FileHeader:
        with text_file.open_text(system, path) as stream:
            begin = stream.read(len(codecs.BOM_UTF32_LE))
        encoding = next((name for mark, name in BYTE_ORDER_MARKS if begin.startswith(mark)), "")
        if encoding not in ("", "UTF-8"):
            raise OSError(f"it is {encoding}: write it as UTF-8")
        return FileHeader(path) if begin else empty(path)


class Text(TextHead):
    def rows(
        self, spark: SparkSession, source: Files, groups: Sequence[FileGroup], resolve: Resolve
    ) -> list[DataFrame]:
        [files] = groups
        columns = resolve([FileColumn(LINE, TEXT, files.head.path)])
        return [_rows(lines(spark, files.uris), columns)]


def lines(spark: SparkSession, paths: Sequence[str], are_all: bool = True) -> DataFrame:
    """Returns `_line`, the path and `_index`. The end of a line is not part of it. are_all: with lines of blanks."""
    rows = reader(spark).option("lineSep", "\n").text(list(paths))
    # Of its bytes, because it may be no UTF-8. What ends in several CR keeps the others.
    shorter = F.substring(F.col("value").cast("binary"), F.lit(1), F.octet_length("value") - 1).cast("string")
    rows = rows.withColumn("_line", F.when(F.endswith("value", F.lit("\r")), shorter).otherwise(F.col("value")))
    if not are_all:
        rows = rows.filter(F.rtrim("_line") != "")
    return with_row_numbers(rows).select("_line", PATH, F.col("_row").alias("_index"))


def _rows(rows: DataFrame, columns: Columns) -> DataFrame:
    """Returns the lines as rows. A line that is no UTF-8 is rescued, with one character for each byte."""
    line = F.try_validate_utf8("_line")
    raw = F.when(line.isNull(), F.decode(F.col("_line").cast("binary"), BYTES))
    rescued = [(F.lit(RECORD), raw)]
    field = columns.of(LINE, TEXT)
    if field is None and not columns.leaves_out(LINE):
        rescued.append((F.lit(LINE), line))
    has_rescued = any_of([value.isNotNull() for _, value in rescued])
    return with_values(rows, {field.name: line} if field else {}, F.when(has_rescued, as_json(rescued)))
