"""Leaves out the rows that repeat one with the same identity, of the same batch or stored."""

from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType, TimestampType

from include.engine.batch import data_skipping
from include.settings import settings
from include.spec import Append, Table, Watermark

PLACE = "_place"


def moment(table: Table, write: Append) -> str | None:
    """The timestamp by which stored rows can be narrowed: the watermark's, or one of the identity."""
    if write.watermark:
        return write.watermark.of
    schema = StructType.fromDDL(table.schema)
    return next((key for key in write.unique if isinstance(schema[key].dataType, TimestampType)), None)


def near(table: Table, write: Append, starts: set[int]) -> str:
    """A SQL condition for the stored rows that rows of these minutes may repeat. starts: of the minutes, in seconds."""
    column = moment(table, write)
    if not column:
        return "true"
    return data_skipping.condition(column, starts, "minute", write.watermark.minutes * 60 if write.watermark else 0)


def first_of_each(rows: DataFrame, table: Table, write: Append, near: str, however_late: bool = False) -> DataFrame:
    """Rows whose identity is new, the first of each. A row with a NULL in it has no identity, and stays.

    near: as `near` gives it, or `true`. however_late: also rows further apart than the watermark's minutes repeat.
    """
    by_time = None if however_late else write.watermark
    keys = _keys(write, by_time)
    rows = placed(rows, write, by_time).filter(F.col(PLACE) == 1).drop(PLACE)
    stored = rows.sparkSession.read.format("delta").load(str(settings().table_path(table.name))).filter(near)
    # On plain equality, which a NULL never meets.
    same = [_of("new", key) == _of("stored", key) for key in write.unique]
    if by_time:
        apart = F.abs(F.unix_micros(_of("new", by_time.of)) - F.unix_micros(_of("stored", by_time.of)))
        same.append(apart <= round(by_time.minutes * 60_000_000))
    return rows.alias("new").join(
        stored.select(*[f"`{key}`" for key in dict.fromkeys(keys)]).alias("stored"), reduce(and_, same), "left_anti"
    )


def placed(rows: DataFrame, write: Append, by_time: Watermark | None) -> DataFrame:
    """`rows` plus `_place`, the place of each among those of its identity, from 1 on."""
    is_nobody = reduce(or_, [F.col(f"`{key}`").isNull() for key in _keys(write, by_time)])
    order = [F.col(f"`{name}`") for name in write.first_by or write.unique]
    first = Window.partitionBy(is_nobody, *[F.col(f"`{key}`") for key in write.unique]).orderBy(*order)
    return rows.withColumn(PLACE, F.when(is_nobody, 1).otherwise(F.row_number().over(first)))


def _keys(write: Append, by_time: Watermark | None) -> list[str]:
    return [*write.unique, *([by_time.of] if by_time else [])]


def _of(side: str, column: str) -> Column:
    return F.col(f"{side}.`{column}`")
