"""Keeps identities of stored rows in memory from batch to batch, for the minutes in which new rows lie."""

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from include.engine.batch import data_skipping
from include.engine.fast_path import table_at_version
from include.engine.fast_path.features import NotSupported
from include.spec import Append

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

    def load(self, times: Iterable[int]) -> None:
        """Loads the stored identities that rows of these times (microseconds since 1970) may repeat."""
        margin = -(-(self._apart_micros or 0) // MINUTE_MICROS)
        touched_minutes = {time // MINUTE_MICROS for time in times}
        minutes = {nearby for minute in touched_minutes for nearby in range(minute - margin, minute + margin + 1)}
        if self._count > MOST_KEYS:
            self._clear()
        if missing := minutes - self._minutes:
            self._read(missing)
            self._minutes |= missing

    def _read(self, minutes: set[int]) -> None:
        spans = [
            (begin * 1_000_000, end * 1_000_000)
            for begin, end in data_skipping.spans([minute * 60 for minute in minutes], 60)
        ]
        names = list(dict.fromkeys((*self._write.unique, self.moment)))
        assert self._version is not None
        self._stored = table_at_version.at_version(self._table, self._stored, self._version)
        rows = table_at_version.read(self._table, self._stored, self.moment, spans, False, names, MOST_KEYS + 1)
        if len(rows) > MOST_KEYS:
            raise NotSupported(f"more than {MOST_KEYS:,} stored rows lie near its own")
        self.add(rows)

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
