"""Keeps identities of stored rows in memory from batch to batch, for the minutes in which new rows lie."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from include.delta import stored_table
from include.engine.rows import deduplicate
from include.engine.rows.micro_batch import Refusal
from include.lake import data_files, locations
from include.spec import Append

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = -(EPOCH - datetime.min.replace(tzinfo=UTC)) // timedelta(microseconds=1)
LAST = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
# The maximum in a file's statistics may be truncated to milliseconds.
MILLISECOND = 1_000

Spans = list[tuple[int, int]]


def read(
    table: str, opened: DeltaTable, column: str, spans: Spans, or_null: bool, columns: list[str], limit: int
) -> pa.Table | Refusal:
    """Returns at most `limit` rows whose time lies in one of the spans or, with `or_null`, is NULL.

    opened: the table at the desired version. column: a timestamp. spans: half-open, in microseconds since 1970. Refuses
    a table if the statistics of a file name a time that delta-rs cannot read.
    """
    if not _has_readable_bounds(opened, column):
        return Refusal(f"the statistics of {column} in a file have a time beyond the year 9999")
    # Without the predicate, Arrow builds an expression from each file's statistics: 0.1 s for a thousand files.
    rows = stored_table.dataset(table, opened, _file_predicate(column, spans, or_null))
    path = locations.table_path(table)
    if not isinstance(path, Path):
        actions = pa.table(opened.get_add_actions())
        sizes = dict(zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True))
        rows = data_files.in_memory(rows, path, sizes)
    return rows.scanner(columns=columns, filter=_row_filter(column, spans, or_null)).head(limit)


def _has_readable_bounds(opened: DeltaTable, column: str) -> bool:
    """Whether Arrow skips no file that may hold rows of any time.

    delta-rs reads no time beyond the year 9999, and compares the rows of its file with NULL instead.
    """
    files = pa.table(opened.get_add_actions(flatten=True))
    if f"null_count.{column}" not in files.column_names:
        return True
    has_times = pc.less(files[f"null_count.{column}"], files["num_records"])
    bounds = (files[name] for name in (f"min.{column}", f"max.{column}") if name in files.column_names)
    return not any(pc.any(pc.and_(has_times, bound.is_null())).as_py() for bound in bounds)


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


MINUTE_MICROS = 60_000_000
# Most identities, or times of identities. Each takes about 200 bytes.
MOST_KEYS = 500_000

Key = tuple[Any, ...]


class KnownKeys:
    """The identities of one version of a table, which `at` sets. moment: the timestamp that restricts stored rows."""

    def __init__(self, table: str, write: Append, moment: str) -> None:
        self._table = table
        self._write = write
        self.moment = moment
        self._apart_micros = round(write.watermark.minutes * MINUTE_MICROS) if write.watermark else None
        self._version: int | None = None
        self._minutes: set[int] = set()
        # Of each identity its times in order; none without a watermark, where one row at any time counts.
        self._times: dict[Key, list[int]] = {}
        self._count = 0
        self._stored: DeltaTable | None = None

    def at(self, version: int) -> None:
        """Sets the version of the table; discards everything if it differs from the known one."""
        if version != self._version:
            self.forget()
            self._version = version

    def forget(self) -> None:
        self._version = None
        self._clear()

    def _clear(self) -> None:
        self._minutes, self._times, self._count = set(), {}, 0

    def load(self, times: Iterable[int]) -> Refusal | None:
        """Loads the stored identities that rows of these times (microseconds since 1970) may repeat. Returns why it
        cannot, if so.
        """
        margin = -(-(self._apart_micros or 0) // MINUTE_MICROS)
        touched_minutes = {time // MINUTE_MICROS for time in times}
        minutes = {nearby for minute in touched_minutes for nearby in range(minute - margin, minute + margin + 1)}
        if self._count > MOST_KEYS:
            self._clear()
        missing = minutes - self._minutes
        if missing and (refusal := self._read(missing)):
            return refusal
        self._minutes |= missing
        return None

    def _read(self, minutes: set[int]) -> Refusal | None:
        spans = [
            (begin * 1_000_000, end * 1_000_000)
            for begin, end in deduplicate.spans([minute * 60 for minute in minutes], 60)
        ]
        names = list(dict.fromkeys((*self._write.unique, self.moment)))
        assert self._version is not None
        self._stored = at_version(self._table, self._stored, self._version)
        rows = read(self._table, self._stored, self.moment, spans, False, names, MOST_KEYS + 1)
        if isinstance(rows, Refusal):
            return rows
        if len(rows) > MOST_KEYS:
            return Refusal(f"more than {MOST_KEYS:,} stored rows lie near its own")
        self.add(rows)
        return None

    def repeats(self, key: Key, time: int) -> bool:
        """Whether the table holds a row of this identity, close enough in time."""
        times = self._times.get(key)
        if times is None:
            return False
        if self._apart_micros is None:
            return True
        nearest = bisect_left(times, time - self._apart_micros)
        return nearest < len(times) and times[nearest] <= time + self._apart_micros

    def add(self, rows: pa.Table) -> None:
        """Adds rows that the table holds."""
        grown: dict[Key, list[int]] = {}
        for key, time in zip(keys_of(rows, self._write.unique), micros(rows, self.moment), strict=True):
            if time is not None and None not in key:
                grown.setdefault(key, []).append(time)
        for key, times in grown.items():
            known = self._times.setdefault(key, [])
            if self._apart_micros is None:
                self._count += not known
                known[:] = times[:1]
            else:
                self._count += len(times)
                known += times
                known.sort()

    def committed(self, version: int, rows: pa.Table) -> None:
        """Adds rows that were committed; `version` is the table's version now."""
        self._version = version
        self.add(rows)


def keys_of(rows: pa.Table, columns: Iterable[str]) -> list[Key]:
    """Returns the values of these columns, row by row. Times and dates are integers, which have no greatest year."""
    return list(zip(*[_values(rows.column(column)) for column in columns], strict=True))


def micros(rows: pa.Table, column: str) -> list[int | None]:
    """Returns a timestamp column, in microseconds since 1970."""
    return list(rows.column(column).cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist())


def _values(values: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    elif pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    return list(values.to_pylist())


def not_compared(schema: pa.Schema, names: Iterable[str], of: str = "its column") -> Refusal | None:
    """Refuses columns whose values only Spark compares. of: begins the sentence about one."""
    unsupported = next((name for name in names if not is_comparable(schema.field(name).type)), None)
    if unsupported is None:
        return None
    return Refusal(f"{of} {unsupported} is of a type that is not compared outside Spark")


def is_comparable(type_: pa.DataType) -> bool:
    """Whether values of this type are equal in Python exactly if they are in Spark; floating-point values are not."""
    return bool(
        pa.types.is_string(type_)
        or pa.types.is_binary(type_)
        or pa.types.is_integer(type_)
        or pa.types.is_boolean(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_date32(type_)
        or pa.types.is_timestamp(type_)
    )
