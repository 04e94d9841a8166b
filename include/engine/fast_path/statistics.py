"""The statistics of a data file as Delta's protocol defines them ("Per-file Statistics").

Every bound holds for all rows, also where a value had to be shortened: times are rounded outwards to milliseconds, text
to 32 characters, decimals to the next double. A column without a bound is one that readers cannot skip by.
"""

import json
import math
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]

from include.engine.fast_path.features import Layout

PREFIX_CHARACTERS = 32
GREATEST_CHARACTER = "\U0010ffff"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Python's own dates reach no further, and neither do those of most readers.
DAY_OF_1970 = date(1970, 1, 1).toordinal()
FIRST_DAY, LAST_DAY = date.min.toordinal() - DAY_OF_1970, date.max.toordinal() - DAY_OF_1970
MICROS_A_DAY = 86_400_000_000


def of(rows: pa.Table, layout: Layout) -> str:
    """As JSON, of the columns that the table wants statistics of."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for path, values in _indexed(rows, layout):
        _put(nulls, path, values.null_count)
        if bounds := _bounds(values):
            _put(least, path, bounds[0])
            _put(greatest, path, bounds[1])
    return json.dumps({"numRecords": len(rows), "minValues": least, "maxValues": greatest, "nullCount": nulls})


def together(parts: Sequence[str]) -> str:
    """Of the rows of several parts of a file, out of the statistics of each."""
    found = [json.loads(part) for part in parts]
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, Any] = {}
    for path in {path: None for part in found for path in _paths(part["nullCount"])}:
        _put(nulls, path, sum(_get(part["nullCount"], path) for part in found))
        # A part of nothing but NULL has no bounds, and needs none.
        valued = [part for part in found if _get(part["nullCount"], path) < part["numRecords"]]
        for name, into, choose in (("minValues", least, min), ("maxValues", greatest, max)):
            bounds = [_get(part[name], path) for part in valued]
            if bounds and None not in bounds:
                _put(into, path, choose(bounds))
    records = sum(part["numRecords"] for part in found)
    return json.dumps({"numRecords": records, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def _paths(values: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _paths(value, (*above, name))
        else:
            yield *above, name


def _get(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = None if values is None else values.get(name)
    return values


def _indexed(rows: pa.Table, layout: Layout) -> Iterator[tuple[tuple[str, ...], pa.ChunkedArray]]:
    leaves = [leaf for name in rows.column_names for leaf in _leaves((name,), rows.column(name))]
    if layout.indexed is not None:
        wanted = tuple(layout.indexed)
        yield from (leaf for leaf in leaves if any(".".join(leaf[0][:n]) in wanted for n in range(1, len(leaf[0]) + 1)))
    else:
        yield from leaves if layout.most_indexed < 0 else leaves[: layout.most_indexed]


def _leaves(path: tuple[str, ...], values: pa.ChunkedArray) -> Iterator[tuple[tuple[str, ...], pa.ChunkedArray]]:
    if not pa.types.is_struct(values.type):
        yield path, values
        return
    for place, field in enumerate(values.type):
        yield from _leaves((*path, field.name), pc.struct_field(values, [place]))


def _put(into: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = value


def _bounds(values: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """The least and the greatest value as JSON values; None for types and values that Delta gives no bounds of."""
    kind = values.type
    if values.null_count == len(values):
        return None
    if pa.types.is_timestamp(kind):
        return _times(*_least_and_greatest(values.cast(pa.int64())))
    if pa.types.is_date32(kind):
        return _days(*_least_and_greatest(values.cast(pa.int32())))
    if pa.types.is_string(kind):
        least, greatest = _least_and_greatest(values)
        return least[:PREFIX_CHARACTERS], shortened_up(greatest)
    if pa.types.is_integer(kind):
        return _least_and_greatest(values)
    if pa.types.is_floating(kind):
        # Not a number is the greatest of all for Spark, and JSON has no word for it.
        is_sound = pc.all(pc.is_finite(values)).as_py()
        return _least_and_greatest(values) if is_sound else None
    if pa.types.is_decimal(kind):
        least, greatest = _least_and_greatest(values)
        return math.nextafter(float(least), -math.inf), math.nextafter(float(greatest), math.inf)
    return None


def _least_and_greatest(values: pa.ChunkedArray) -> tuple[Any, Any]:
    found = pc.min_max(values)
    return found["min"].as_py(), found["max"].as_py()


def _times(least: int, greatest: int) -> tuple[str, str] | None:
    """Microseconds since 1970."""
    if not FIRST_DAY * MICROS_A_DAY <= least <= greatest < LAST_DAY * MICROS_A_DAY:
        return None
    return _time(least // 1000), _time(-(-greatest // 1000))


def _time(milliseconds: int) -> str:
    moment = EPOCH + timedelta(milliseconds=milliseconds)
    return f"{moment.strftime('%Y').zfill(4)}{moment.strftime('-%m-%dT%H:%M:%S')}.{milliseconds % 1000:03}Z"


def _days(least: int, greatest: int) -> tuple[str, str] | None:
    """Days since 1970."""
    if not FIRST_DAY <= least <= greatest <= LAST_DAY:
        return None
    return tuple(date.fromordinal(day + DAY_OF_1970).isoformat() for day in (least, greatest))  # type: ignore[return-value]


def shortened_up(text: str) -> str:
    """A text of few characters that does not come before this one."""
    if len(text) <= PREFIX_CHARACTERS:
        return text
    bound = text[:PREFIX_CHARACTERS] + GREATEST_CHARACTER
    while bound < text:
        bound += GREATEST_CHARACTER
    return bound
