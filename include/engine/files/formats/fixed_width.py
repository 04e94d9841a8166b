"""Files of text whose columns lie at fixed places in the line, as mainframes and banks write them."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from include.engine.files.formats.columns import FileColumn
from include.engine.files.formats.format import BYTES, RECORD, TEXT, FileGroup, Resolve, as_json, with_values
from include.engine.files.formats.text import TextHead, lines
from include.spec import Files


class FixedWidth(TextHead):
    """A line is a record, unless it is blank. A cell has no blanks around it, and is NULL if it has nothing else.

    A line may end early. One with more behind its last column is rescued, and one that is no UTF-8, which has no cells.
    """

    def rows(
        self, spark: SparkSession, source: Files, groups: Sequence[FileGroup], resolve: Resolve
    ) -> list[DataFrame]:
        [files] = groups
        columns = resolve([FileColumn(name, TEXT, files.head.path, len(files.heads)) for name in source.widths])
        rows = lines(spark, files.uris, are_all=False)
        line = F.try_validate_utf8("_line")
        values: dict[str, Column] = {}
        rescued: list[tuple[Column, Column]] = []
        begin = 1
        for name, width in source.widths.items():
            cell = F.nullif(F.btrim(F.substring(line, begin, width)), F.lit(""))
            begin += width
            field = columns.of(name, TEXT)
            if field and field.name not in values:
                values[field.name] = cell
            elif not columns.leaves_out(name):
                rescued.append((F.lit(name), cell))
        fits = F.coalesce(F.btrim(F.substr(line, F.lit(begin))) == "", F.lit(False))
        readable = F.coalesce(line, F.decode(F.col("_line").cast("binary"), BYTES))
        rescued.append((F.lit(RECORD), F.when(~fits, readable)))
        text = as_json(rescued)
        return [with_values(rows, values, F.when(text != "{}", text))]
