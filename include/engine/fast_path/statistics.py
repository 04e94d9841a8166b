"""Computes the statistics of a data file as Delta's protocol defines them ("Per-file Statistics").

Every bound holds for all rows, even if values are shortened: times are rounded outwards to milliseconds, text to 32
characters, decimals to the next double. Readers cannot skip files by a column without bounds.
"""

import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from include.engine.fast_path.features import Layout

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
