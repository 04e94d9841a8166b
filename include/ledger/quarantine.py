"""The newest rows of a table's quarantine, each with why it is there, and how many rows broke each rule.

Only the newest files are read: for the counts one column of them, for the rows the few that hold these.
"""

import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from include.errors import Broken
from include.readers.delta_log import LiveFile, Log
from include.settings import settings
from include.spec import Table
from include.spec.origin import ORIGIN

RULES = "_rules"
# What says by which batch a row came here; beside these, a row has the columns of its table.
STAMP = ("_flow", "_generation", "_batch")
OTHERS = (RULES, "_source", "_replay", "_errors", "_reason")
# Of so many rows, the newest, the broken rules are counted.
MOST_COUNTED_ROWS = 200_000
SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Row:
    """at: when its batch put it here, in seconds; where nobody knows any more, the date of its file.

    errors: the fields that could not be typed, and why. reason: of a file that is not in the table.
    origin: where it came from. source_to: where its batch ended in its source. row: its other columns.
    """

    rules: list[str]
    flow: str
    generation: int
    batch: int
    at: float
    errors: list[dict[str, str]]
    reason: str | None
    origin: dict[str, Any]
    source_to: Any
    row: dict[str, Any]


@dataclass(frozen=True)
class Sample:
    """rows: newest first. total: of the whole quarantine, None where a file does not say.

    counted: of how many rows, the newest, `broke` says by how many each rule was broken.
    """

    rows: list[Row]
    total: int | None
    counted: int
    broke: dict[str, int]


def sample(table: Table, limit: int) -> Sample:
    """Raises Unreachable where there is no quarantine, and Broken where a file of it cannot be read."""
    log = Log(settings().table_path(table.quarantine))
    files = sorted(log.state.live, key=lambda file: (file.modified_at, file.path), reverse=True)
    counts = [file.rows for file in files]
    total = None if None in counts else sum(count for count in counts if count is not None)
    counted, broke = _count(log, files)
    return Sample(_newest(log, files, limit), total, counted, broke)


def _count(log: Log, files: list[LiveFile]) -> tuple[int, dict[str, int]]:
    rows, broke = 0, Counter[str]()
    for file in files:
        if rows >= MOST_COUNTED_ROWS:
            break
        rules = _read(log, file, [RULES])
        rows += len(rules)
        names = pc.value_counts(pc.list_flatten(rules.column(RULES)))
        broke.update({one["values"]: one["counts"] for one in names.to_pylist()})
    return rows, dict(broke.most_common())


def _newest(log: Log, files: list[LiveFile], limit: int) -> list[Row]:
    found: list[tuple[dict[str, Any], LiveFile]] = []
    for file in files:
        if len(found) >= limit:
            break
        rows = _read(log, file).sort_by([("_generation", "descending"), ("_batch", "descending")])
        found += [(row, file) for row in rows.slice(0, limit - len(found)).to_pylist()]
    times = _times(log, {_batch(row) for row, _ in found})
    made = [_row(row, times.get(_batch(row), file.modified_at)) for row, file in found]
    return sorted(made, key=lambda row: row.at, reverse=True)


def _read(log: Log, file: LiveFile, columns: list[str] | None = None) -> Any:
    try:
        return parquet.ParquetFile(log.table / file.path).read(columns)
    except (OSError, ValueError) as error:
        raise Broken(f"{log.table / file.path} is missing or damaged ({error}): restore it from its backup") from error


def _batch(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in STAMP)


def _times(log: Log, batches: set[tuple[Any, ...]]) -> dict[tuple[Any, ...], float]:
    """When these batches were committed, as far back as the log tells."""
    found: dict[tuple[Any, ...], float] = {}
    for commit in log.commits():
        if len(found) == len(batches):
            break
        batch = tuple(commit.metadata.get(name.removeprefix("_")) for name in STAMP)
        if batch in batches:
            found.setdefault(batch, commit.timestamp)
    return found


def _row(row: dict[str, Any], at: float) -> Row:
    own = {name: value for name, value in row.items() if name not in (*STAMP, *OTHERS)}
    return Row(
        rules=list(row[RULES] or []),
        flow=row["_flow"],
        generation=row["_generation"],
        batch=row["_batch"],
        at=at,
        errors=row.get("_errors") or [],
        reason=row.get("_reason"),
        origin={name: own[name] for name in ORIGIN if own.get(name) is not None},
        source_to=json.loads(row.get("_source") or "null"),
        row={name: value for name, value in own.items() if name not in ORIGIN},
    )
