"""Writes rows as one data file of a Delta table, with the statistics by which readers skip it.

The statistics are as Delta's protocol defines them ("Per-file Statistics"). Every bound holds for all rows, even if
values are shortened: times are rounded outwards to milliseconds, text to 32 characters, decimals to the next double.
Readers cannot skip files by a column without bounds.
"""

import json
import math
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from include.engine.fast_path.table_layout import Layout, NotSupported
from include.lake.paths import LakePath
from include.settings import settings

PREFIX_CHARACTERS = 32
GREATEST_CHARACTER = "\U0010ffff"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Python's dates end here, and so do those of most readers.
DAY_OF_1970 = date(1970, 1, 1).toordinal()
FIRST_DAY, LAST_DAY = date.min.toordinal() - DAY_OF_1970, date.max.toordinal() - DAY_OF_1970
MICROS_A_DAY = 86_400_000_000


def of(rows: pa.Table, layout: Layout) -> str:
    """Returns the statistics as JSON, for the columns that the table's properties name."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for path, values in _indexed_leaves(rows, layout):
        _set_nested(nulls, path, values.null_count)
        if bounds := _bounds(values):
            _set_nested(least, path, bounds[0])
            _set_nested(greatest, path, bounds[1])
    return json.dumps({"numRecords": len(rows), "minValues": least, "maxValues": greatest, "nullCount": nulls})


def merge(parts: Sequence[str]) -> str:
    """Merges the statistics of several parts of a file."""
    statistics_of_parts = [json.loads(part) for part in parts]
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for path in {path: None for part in statistics_of_parts for path in _paths(part["nullCount"])}:
        _set_nested(nulls, path, sum(_nested(part["nullCount"], path) for part in statistics_of_parts))
        # A part of nothing but NULL has no bounds, and needs none.
        parts_with_values = [
            part for part in statistics_of_parts if _nested(part["nullCount"], path) < part["numRecords"]
        ]
        for name, into, choose in (("minValues", least, min), ("maxValues", greatest, max)):
            bounds = [_nested(part[name], path) for part in parts_with_values]
            if bounds and None not in bounds:
                _set_nested(into, path, choose(bounds))
    records = sum(part["numRecords"] for part in statistics_of_parts)
    return json.dumps({"numRecords": records, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _paths(values: dict[str, Any], prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _paths(value, (*prefix, name))
        else:
            yield *prefix, name


def _nested(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = None if values is None else values.get(name)
    return values


def _indexed_leaves(rows: pa.Table, layout: Layout) -> Iterator[tuple[tuple[str, ...], pa.ChunkedArray]]:
    leaves = [leaf for name in rows.column_names for leaf in _leaves((name,), rows.column(name))]
    if layout.indexed is not None:
        names = tuple(layout.indexed)
        yield from (
            leaf for leaf in leaves if any(".".join(leaf[0][:length]) in names for length in range(1, len(leaf[0]) + 1))
        )
    else:
        yield from leaves if layout.most_indexed < 0 else leaves[: layout.most_indexed]


def _leaves(path: tuple[str, ...], values: pa.ChunkedArray) -> Iterator[tuple[tuple[str, ...], pa.ChunkedArray]]:
    if not pa.types.is_struct(values.type):
        yield path, values
        return
    for index, field in enumerate(values.type):
        yield from _leaves((*path, field.name), pc.struct_field(values, [index]))


def _set_nested(into: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _bounds(values: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Returns minimum and maximum as JSON values; None for types and values without bounds in Delta."""
    type_ = values.type
    if values.null_count == len(values):
        return None
    if pa.types.is_timestamp(type_):
        return _time_bounds(*_min_max(values.cast(pa.int64())))
    if pa.types.is_date32(type_):
        return _day_bounds(*_min_max(values.cast(pa.int32())))
    if pa.types.is_string(type_):
        try:
            least, greatest = _min_max(values)
        except UnicodeDecodeError:
            # Spark stores any bytes as text, and JSON takes characters alone.
            return None
        return least[:PREFIX_CHARACTERS], shortened_up(greatest)
    if pa.types.is_integer(type_):
        return _min_max(values)
    if pa.types.is_floating(type_):
        # In Spark NaN is the greatest value, and JSON cannot represent it.
        is_finite = pc.all(pc.is_finite(values)).as_py()
        return _min_max(values) if is_finite else None
    if pa.types.is_decimal(type_):
        least, greatest = _min_max(values)
        return math.nextafter(float(least), -math.inf), math.nextafter(float(greatest), math.inf)
    return None


def _min_max(values: pa.ChunkedArray) -> tuple[Any, Any]:
    bounds = pc.min_max(values)
    return bounds["min"].as_py(), bounds["max"].as_py()


def _time_bounds(least: int, greatest: int) -> tuple[str, str] | None:
    """Returns the bounds of times in microseconds since 1970."""
    if not FIRST_DAY * MICROS_A_DAY <= least <= greatest < LAST_DAY * MICROS_A_DAY:
        return None
    return _format_time(least // 1000), _format_time(-(-greatest // 1000))


def _format_time(milliseconds: int) -> str:
    moment = EPOCH + timedelta(milliseconds=milliseconds)
    return f"{moment.strftime('%Y').zfill(4)}{moment.strftime('-%m-%dT%H:%M:%S')}.{milliseconds % 1000:03}Z"


def _day_bounds(least: int, greatest: int) -> tuple[str, str] | None:
    """Returns the bounds of dates in days since 1970."""
    if not FIRST_DAY <= least <= greatest <= LAST_DAY:
        return None
    return date.fromordinal(least + DAY_OF_1970).isoformat(), date.fromordinal(greatest + DAY_OF_1970).isoformat()


def shortened_up(text: str) -> str:
    """Returns a short text that does not sort before this one."""
    if len(text) <= PREFIX_CHARACTERS:
        return text
    bound = text[:PREFIX_CHARACTERS] + GREATEST_CHARACTER
    while bound < text:
        bound += GREATEST_CHARACTER
    return bound


# Integers and decimals as Spark writes them, so that all files of a table have the same types.
FORMAT: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "store_decimal_as_integer": True}
# Size of a row group in memory.
ROW_GROUP_BYTES = 64 * 2**20
# Larger files wait for their upload on the local disk.
MOST_BUFFERED_BYTES = 32 * 2**20


class DataFile:
    """A file in a table's directory, which readers do not see before its commit.

    rows: number of rows. size: in bytes. stats: their statistics, from `statistics.of`.
    """

    def __init__(self, table: LakePath) -> None:
        self.name = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
        self.path = table / self.name
        self.rows = 0
        self.size = 0
        self.stats = ""

    def added(self, changes_data: bool = True) -> dict[str, Any]:
        """Returns the `add` action. changes_data: the table did not hold its rows."""
        return {
            "path": self.name,
            "partitionValues": {},
            "size": self.size,
            "modificationTime": math.floor(time.time() * 1000),
            "dataChange": changes_data,
            "stats": self.stats,
        }

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


def write(parts: Iterable[pa.Table], table: LakePath, layout: Layout) -> DataFile:
    """Writes rows as a file. parts: become row groups, with at least the table's columns. table: its path.

    Deletes the file on failure. Raises NotSupported if the types of the rows differ from the table's.
    """
    file = DataFile(table)
    stats: list[str] = []
    try:
        with _sink(file) as sink, parquet.ParquetWriter(sink, layout.schema, **FORMAT) as writer:
            for rows in _row_groups(conform(part, layout) for part in parts):
                file.rows += len(rows)
                stats.append(of(rows, layout))
                writer.write_table(rows, row_group_size=max(1, len(rows)))
    except BaseException:
        file.delete()
        raise
    file.stats = stats[0] if len(stats) == 1 else merge(stats)
    return file


@contextmanager
def _sink(file: DataFile) -> Iterator[Any]:
    """Yields where to write the file, and notes its size. An object is written at the end, as a whole."""
    if isinstance(file.path, Path):
        yield file.path
        file.size = file.path.stat().st_size
        return
    with tempfile.SpooledTemporaryFile(MOST_BUFFERED_BYTES, dir=str(settings().temporary)) as buffer:
        yield buffer
        file.size = buffer.tell()
        buffer.seek(0)
        file.path.write_bytes(buffer)


def _row_groups(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Combines parts into row groups; holds one group and one part in memory."""
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(rows.nbytes for rows in waiting) >= ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def conform(rows: pa.Table, layout: Layout) -> pa.Table:
    """Returns the table's columns, in its order and types. Raises NotSupported."""
    try:
        return rows.select(layout.schema.names).cast(layout.schema)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise NotSupported(f"its rows do not fit the table's columns: {error}") from error


def removal(path: str, size: int, changes_data: bool = True) -> dict[str, Any]:
    """Returns the `remove` action of a file that others replace. changes_data: the others hold different rows."""
    return {
        "path": path,
        "deletionTimestamp": math.floor(time.time() * 1000),
        "dataChange": changes_data,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": size,
    }
