"""A stored table at a version, and of it the rows of certain times, from those files alone that may hold them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
from deltalake import DeltaTable

from include.readers import stored_rows
from include.settings import settings

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = -(EPOCH - datetime.min.replace(tzinfo=UTC)) // timedelta(microseconds=1)
LAST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
# The greatest time of a file may be cut down to milliseconds.
MILLISECOND = 1_000

Spans = list[tuple[int, int]]


def read(
    table: str, opened: DeltaTable, column: str, spans: Spans, or_null: bool, columns: list[str], most: int
) -> pa.Table:
    """At most so many rows whose time lies in one of the spans, or is NULL.

    opened: the table, at the version that is meant. column: a timestamp. spans: beginnings, and before which they end,
    in microseconds since 1970.
    """
    # Without the predicate, an expression is made of the statistics of each file of the table: a tenth of a second for
    # a thousand of them.
    rows = stored_rows.dataset(table, opened, _of_files(column, spans, or_null))
    return rows.scanner(columns=columns, filter=_of_rows(column, spans, or_null)).head(most)


def at_version(table: str, opened: DeltaTable | None, version: int) -> DeltaTable:
    """The table at this version. opened: the same at another one, from where its log is read on; None: nowhere yet."""
    if opened is None or opened.version() > version:
        return DeltaTable(str(settings().table_path(table)), version=version)
    if opened.version() < version:
        opened.update_incremental()
        if opened.version() != version:
            opened.load_as_version(version)
    return opened


def _of_rows(column: str, spans: Spans, or_null: bool) -> Any:
    field, kind = ds.field(column), pa.timestamp("us", "UTC")
    terms = [(field >= pa.scalar(begin, kind)) & (field < pa.scalar(end, kind)) for begin, end in spans]
    return reduce(or_, terms + ([field.is_null()] if or_null else []))


def _of_files(column: str, spans: Spans, or_null: bool) -> str:
    name = '"' + column.replace('"', '""') + '"'
    terms = [" AND ".join(_bounds(name, begin - MILLISECOND, end)) or "true" for begin, end in spans]
    return " OR ".join(f"({term})" for term in terms + ([f"{name} IS NULL"] if or_null else []))


def _bounds(name: str, begin: int, end: int) -> Iterator[str]:
    # Python's own times reach no further, and what has no bound is not left out.
    if FIRST <= begin <= LAST:
        yield f"{name} >= '{_moment(begin)}'"
    if FIRST <= end <= LAST:
        yield f"{name} < '{_moment(end)}'"


def _moment(micros: int) -> str:
    return (EPOCH + timedelta(microseconds=micros)).isoformat()
