"""Narrows a read to the time a batch touches, in a form Delta can skip files by."""

import math
from collections.abc import Iterable

from pyspark.sql import Column
from pyspark.sql import functions as F

MOST_SPANS = 50
UNIT_SECONDS = {"minute": 60, "hour": 3_600, "day": 86_400}


def bucket(of: str, unit: str) -> Column:
    """The start of the minute, hour or day that the timestamp lies in."""
    return F.date_trunc(unit, F.col(of))


def condition(column: str, starts: Iterable[int | None], unit: str, margin_seconds: float = 0) -> str:
    """A SQL condition that holds for every row whose `column` lies in one of the buckets; NULL is a bucket too.

    starts: bucket starts, seconds since 1970. (Not datetimes: Python's begin in the year 1, Spark's in 0.)
    margin_seconds: rows that lie so far before or behind a bucket count as well.
    """
    starts, margin = set(starts), math.ceil(margin_seconds)
    terms = [
        f"(`{column}` >= timestamp_seconds({begin - margin}) AND `{column}` < timestamp_seconds({end + margin}))"
        for begin, end in spans((start for start in starts if start is not None), UNIT_SECONDS[unit])
    ]
    if None in starts:
        terms.append(f"`{column}` IS NULL")
    return f"({' OR '.join(terms)})" if terms else "false"


def spans(starts: Iterable[int], width: int, most: int = MOST_SPANS) -> list[tuple[int, int]]:
    """At most `most` half-open spans that cover every bucket [start, start + width).

    Neighbouring buckets become one span; where that leaves too many, those nearest to each other are joined, which
    reads more rows and misses none.
    """
    ordered = sorted(set(starts))
    gaps = sorted((later - earlier for earlier, later in zip(ordered, ordered[1:], strict=False)), reverse=True)
    widest_joined = max(width, gaps[most - 1]) if len(gaps) >= most else width
    found: list[tuple[int, int]] = []
    for start in ordered:
        if found and start + width - found[-1][1] <= widest_joined:
            found[-1] = (found[-1][0], start + width)
        else:
            found.append((start, start + width))
    return found
