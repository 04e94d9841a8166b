"""Drops rows whose identity repeats that of another row, of the same batch or stored."""

import math
from collections.abc import Iterable
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import AtomicType, DoubleType, FloatType, TimestampType

from include.engine import struct_type
from include.engine.commit import read_table
from include.spec import Append, Table, Watermark, WriteMode

MOST_SPANS = 50
UNIT_SECONDS = {"minute": 60, "hour": 3_600, "day": 86_400}


def bucket(of: str, unit: str) -> Column:
    """Returns the start of the minute, hour or day of the timestamp."""
    return F.date_trunc(unit, F.col(of))


def condition(column: str, starts: Iterable[int | None], unit: str, margin_seconds: float = 0) -> str:
    """Returns a SQL condition that holds for every row whose `column` lies in one of the buckets. NULL is a bucket too.

    starts: bucket starts in seconds since 1970. They are no datetimes, because Python's years begin at 1 and Spark's at
    0. margin_seconds: includes rows that lie at most so far outside a bucket.
    """
    starts, margin = set(starts), math.ceil(margin_seconds)
    terms = [
        f"(`{column}` >= timestamp_seconds({begin - margin}) AND `{column}` < timestamp_seconds({end + margin}))"
        for begin, end in spans((start for start in starts if start is not None), UNIT_SECONDS[unit])
    ]
    if None in starts:
        terms.append(f"`{column}` IS NULL")
    return f"({' OR '.join(terms)})" if terms else "false"


def within_reach(starts: Iterable[int | None], unit: str, reach_seconds: float) -> set[int | None]:
    """Returns the starts of all buckets that lie at most so far from one of these buckets."""
    starts, width = set(starts), UNIT_SECONDS[unit]
    if not reach_seconds:
        return starts
    distance = math.ceil(reach_seconds / width)
    numbers = range(-distance, distance + 1)
    return {None if start is None else start + number * width for start in starts for number in numbers}


def spans(starts: Iterable[int], width: int, limit: int = MOST_SPANS) -> list[tuple[int, int]]:
    """Returns at most `limit` half-open spans that cover every bucket [start, start + width).

    Neighbouring buckets form one span. If there are too many spans, the nearest are joined: the read covers more rows
    and misses none.
    """
    ordered = sorted(set(starts))
    gaps = sorted((later - earlier for earlier, later in zip(ordered, ordered[1:], strict=False)), reverse=True)
    widest_joined = max(width, gaps[limit - 1]) if len(gaps) >= limit else width
    joined: list[tuple[int, int]] = []
    for start in ordered:
        if joined and start + width - joined[-1][1] <= widest_joined:
            joined[-1] = (joined[-1][0], start + width)
        else:
            joined.append((start, start + width))
    return joined


PLACE = "_place"


def time_column(table: Table, write: WriteMode) -> str | None:
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
    return condition(column, starts, "minute", write.watermark.minutes * 60 if write.watermark else 0)


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
