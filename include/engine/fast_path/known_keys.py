"""The identities that a table holds, of the minutes in which new rows lie, kept in memory from batch to batch."""

from collections.abc import Iterable
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable

from include.engine.batch import data_skipping
from include.engine.fast_path import table_at_version
from include.engine.fast_path.features import Refused
from include.spec import Append

MINUTE_MICROS = 60_000_000
# At some 200 bytes each.
MOST_KEYS = 500_000

Key = tuple[Any, ...]


class KnownKeys:
    """moment: the timestamp by which stored rows are looked for.

    What it knows counts for one version of the table: `at` tells it which that is.
    """

    def __init__(self, table: str, write: Append, moment: str) -> None:
        self._table = table
        self._write = write
        self.moment = moment
        self._apart_micros = round(write.watermark.minutes * MINUTE_MICROS) if write.watermark else None
        self._version: int | None = None
        self._minutes: set[int] = set()
        self._times: dict[Key, list[int]] = {}
        self._stored: DeltaTable | None = None

    def at(self, version: int) -> None:
        """Forget everything, if the table has come to another version than the one that is known."""
        if version != self._version:
            self.forget()
            self._version = version

    def forget(self) -> None:
        self._version = None
        self._minutes, self._times = set(), {}

    def load(self, moments: Iterable[int]) -> None:
        """Get to know the stored identities that rows of these times, in microseconds since 1970, may repeat."""
        margin = -(-(self._apart_micros or 0) // MINUTE_MICROS)
        touched = {moment // MINUTE_MICROS for moment in moments}
        wanted = {near for minute in touched for near in range(minute - margin, minute + margin + 1)}
        if len(self._times) > MOST_KEYS:
            self._minutes, self._times = set(), {}
        if missing := wanted - self._minutes:
            self._read(missing)
            self._minutes |= missing

    def _read(self, minutes: set[int]) -> None:
        spans = [
            (begin * 1_000_000, end * 1_000_000) for begin, end in data_skipping.spans([m * 60 for m in minutes], 60)
        ]
        names = list(dict.fromkeys((*self._write.unique, self.moment)))
        assert self._version is not None
        self._stored = table_at_version.at_version(self._table, self._stored, self._version)
        found = table_at_version.read(self._table, self._stored, self.moment, spans, False, names, MOST_KEYS + 1)
        if len(found) > MOST_KEYS:
            raise Refused(f"more than {MOST_KEYS:,} stored rows lie near its own")
        self.add(found)

    def repeats(self, key: Key, time: int) -> bool:
        """Whether the table holds a row of this identity, near enough in time."""
        times = self._times.get(key)
        if times is None:
            return False
        return self._apart_micros is None or any(abs(time - known) <= self._apart_micros for known in times)

    def add(self, rows: pa.Table) -> None:
        """Rows that the table holds."""
        for key, time in zip(keys_of(rows, self._write.unique), micros(rows, self.moment), strict=True):
            if time is not None and None not in key:
                self._times.setdefault(key, []).append(time)

    def committed(self, version: int, rows: pa.Table) -> None:
        """The table has these rows too, and is at this version now."""
        self._version = version
        self.add(rows)


def keys_of(rows: pa.Table, columns: Iterable[str]) -> list[Key]:
    """The values of these columns, row by row; times and dates as whole numbers, which know no last year."""
    return list(zip(*[_values(rows.column(column)) for column in columns], strict=True))


def micros(rows: pa.Table, column: str) -> list[int | None]:
    """Of a timestamp column, in microseconds since 1970."""
    return list(rows.column(column).cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist())


def _values(values: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    elif pa.types.is_date32(values.type):
        values = values.cast(pa.int32())
    return list(values.to_pylist())


def is_comparable(kind: pa.DataType) -> bool:
    """Whether Python tells equal values of the type apart as Spark does: not so with floating-point numbers."""
    return bool(
        pa.types.is_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date32(kind)
        or pa.types.is_timestamp(kind)
    )
