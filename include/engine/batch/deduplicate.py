"""Drops rows whose identity repeats that of another row, of the same batch or stored."""

from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, DoubleType, FloatType, TimestampType

from include.engine import struct_type
from include.engine.batch import data_skipping
from include.engine.tables.read_table import read_table
from include.spec import Append, Table, Watermark

PLACE = "_place"


def time_column(table: Table, write: Append) -> str | None:
    """Returns the timestamp column by which stored rows can be restricted: the watermark's, or one of the identity."""
    if write.watermark:
        return write.watermark.of
    schema = struct_type.from_ddl(table.schema)
    return next((key for key in write.unique if isinstance(schema[key].dataType, TimestampType)), None)


def stored_rows_condition(table: Table, write: Append, starts: set[int]) -> str:
    """Returns a SQL condition for the stored rows that rows of these minutes may repeat. starts: in seconds
    since 1970.
    """
    column = time_column(table, write)
    if not column:
        return "true"
    return data_skipping.condition(column, starts, "minute", write.watermark.minutes * 60 if write.watermark else 0)


def first_of_each(rows: DataFrame, table: Table, write: Append, near: str, however_late: bool = False) -> DataFrame:
    """Returns the first row of each new identity, with unchanged columns. Rows with NULL in the identity all stay.

    near: from `near`, or `true`. however_late: rows further apart than the watermark's minutes repeat each other, too.
    """
    by_time = None if however_late else write.watermark
    keys = _keys(write, by_time)
    rows = with_rank(rows, write, by_time).filter(F.col(PLACE) == 1).drop(PLACE)
    stored = read_table(rows.sparkSession, table.name).filter(near)
    # With plain equality, NULL matches nothing.
    same = [_column("new", key) == _column("stored", key) for key in write.unique]
    if by_time:
        apart = F.abs(F.unix_micros(_column("new", by_time.of)) - F.unix_micros(_column("stored", by_time.of)))
        same.append(apart <= round(by_time.minutes * 60_000_000))
    return rows.alias("new").join(
        stored.select(*[f"`{key}`" for key in dict.fromkeys(keys)]).alias("stored"), reduce(and_, same), "left_anti"
    )


def with_rank(rows: DataFrame, write: Append, by_time: Watermark | None) -> DataFrame:
    """Returns `rows` plus `_place`, the rank of each row among those of its identity, from 1."""
    has_no_identity = reduce(or_, [F.col(f"`{key}`").isNull() for key in _keys(write, by_time)])
    order = _order(rows, write)
    window = Window.partitionBy(has_no_identity, *[F.col(f"`{key}`") for key in write.unique]).orderBy(*order)
    return rows.withColumn(PLACE, F.when(has_no_identity, 1).otherwise(F.row_number().over(window)))


def _order(rows: DataFrame, write: Append) -> list[Column]:
    """Returns the order in which rows of one identity count: that of `first_by`, then of all other values.

    So the same row is the first whatever the partitions, and on both paths (`append._in_order`).
    """
    declared = write.first_by or write.unique
    order = [F.col(f"`{name}`") for name in declared]
    floats: list[Column] = []
    nested: list[Column] = []
    for field in rows.schema:
        column = F.col(f"`{field.name}`")
        if field.name in declared:
            continue
        if isinstance(field.dataType, FloatType | DoubleType):
            # Both zeros are equal, and their texts are not.
            floats += [column, column.cast("string")]
        elif isinstance(field.dataType, AtomicType):
            order.append(column)
        else:
            nested.append(F.to_json(F.struct(column)))
    return [*order, *floats, *nested]


def _keys(write: Append, by_time: Watermark | None) -> list[str]:
    return [*write.unique, *([by_time.of] if by_time else [])]


def _column(side: str, column: str) -> Column:
    return F.col(f"{side}.`{column}`")
