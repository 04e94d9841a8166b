"""Opens a stored table at a version, and reads rows of certain times from only those files that may hold them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from include.delta import stored_table
from include.lake import data_files
from include.settings import settings

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = -(EPOCH - datetime.min.replace(tzinfo=UTC)) // timedelta(microseconds=1)
LAST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
# The maximum in a file's statistics may be truncated to milliseconds.
MILLISECOND = 1_000

Spans = list[tuple[int, int]]


def read(
    table: str, opened: DeltaTable, column: str, spans: Spans, or_null: bool, columns: list[str], limit: int
) -> pa.Table:
    """Returns at most `limit` rows whose time lies in one of the spans or, with `or_null`, is NULL.

    opened: the table at the desired version. column: a timestamp. spans: half-open, in microseconds since 1970.
    """
    # Without the predicate, Arrow builds an expression from each file's statistics: 0.1 s for a thousand files.
    rows = stored_table.dataset(table, opened, _file_predicate(column, spans, or_null))
    path = settings().table_path(table)
    if not isinstance(path, Path):
        actions = pa.table(opened.get_add_actions())
        sizes = dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))
        rows = data_files.in_memory(rows, path, sizes)
    return rows.scanner(columns=columns, filter=_row_filter(column, spans, or_null)).head(limit)


def at_version(table: str, opened: DeltaTable | None, version: int) -> DeltaTable:
    """Opens the table at this version. opened: the table at another version, whose log is read on; None if not open."""
    if opened is None or opened.version() > version:
        return stored_table.open_table(table, version)
    if opened.version() < version:
        # It reads the commits in between. After a version that is too new, it would read the log from its checkpoint.
        opened.load_as_version(version)
    return opened


def _row_filter(column: str, spans: Spans, or_null: bool) -> Any:
    field, type_ = ds.field(column), pa.timestamp("us", "UTC")
    terms = [(field >= pa.scalar(begin, type_)) & (field < pa.scalar(end, type_)) for begin, end in spans]
    return reduce(or_, terms + ([field.is_null()] if or_null else []))


def _file_predicate(column: str, spans: Spans, or_null: bool) -> str:
    name = '"' + column.replace('"', '""') + '"'
    terms = [" AND ".join(_bounds(name, begin - MILLISECOND, end)) or "true" for begin, end in spans]
    return " OR ".join(f"({term})" for term in terms + ([f"{name} IS NULL"] if or_null else []))


def _bounds(name: str, begin: int, end: int) -> Iterator[str]:
    # Python's datetimes end here; a file without a bound is not skipped.
    if FIRST <= begin <= LAST:
        yield f"{name} >= '{_iso_time(begin)}'"
    if FIRST <= end <= LAST:
        yield f"{name} < '{_iso_time(end)}'"


def _iso_time(micros: int) -> str:
    return (EPOCH + timedelta(microseconds=micros)).isoformat()
