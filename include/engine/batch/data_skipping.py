"""Restricts a read to the time range of a batch, in conditions by which Delta can skip files."""

import math
from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

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
