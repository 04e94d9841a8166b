"""Reads the newest rows of a table's quarantine and counts the rows that broke each rule.

It opens only the newest files: for the counts one column of them, for the rows the few files that hold them.
"""

import json
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as parquet

from include import personal
from include.delta.delta_log import DeltaLog, LiveFile
from include.errors import FlowBroken
from include.lake import clients, locations
from include.spec import Table
from include.spec.origin import FAILED_REASON, FAILED_RECORD, ORIGIN

RULES = "_rules"
# The columns that name the batch which wrote the row.
BATCH_COLUMNS = ("_flow", "_generation", "_batch")
QUARANTINE_COLUMNS = (RULES, "_source", "_replay", "_errors", "_reason", FAILED_REASON, FAILED_RECORD)
# Rules are counted over the newest rows, at most this many.
MOST_COUNTED_ROWS = 200_000
SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Row:
    """A quarantined row.

    at: when its batch was committed, in seconds since 1970. If the log no longer has that commit, its file's date.
    errors: the fields that could not be cast, with messages. reason: for a file that is not in the table, and for a row
    of the source that could not be processed, which is then `row`.
    origin: the columns that say where the row came from. source_to: the source offset where its batch ended.
    row: its other columns.
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
    """The newest quarantined rows, newest first.

    total: the rows of the whole quarantine, None where a file has no statistics.
    counted: over how many of the newest rows `broke` counts the rows that broke each rule.
    """

    rows: list[Row]
    total: int | None
    counted: int
    broke: dict[str, int]


def sample(table: Table, limit: int) -> Sample:
    """Returns the newest rows, without the values of personal columns.

    Raises Unreachable without a quarantine, and FlowBroken for an unreadable file.
    """
    log = DeltaLog(locations.table_path(table.quarantine))
    files = sorted(log.state.live, key=lambda file: (file.modified_at, file.path), reverse=True)
    counts = [file.rows for file in files]
    total = None if None in counts else sum(count for count in counts if count is not None)
    counted, broke = _count_rules(log, files)
    return Sample([_masked(table, row) for row in _newest(log, files, limit)], total, counted, broke)


def _masked(table: Table, row: Row) -> Row:
    reason = personal.sentence(table, row.reason) if row.reason else row.reason
    return replace(row, row=personal.row(table, row.row), errors=personal.errors(table, row.errors), reason=reason)


def _count_rules(log: DeltaLog, files: list[LiveFile]) -> tuple[int, dict[str, int]]:
    rows, broke = 0, Counter[str]()
    for file in files:
        if rows >= MOST_COUNTED_ROWS:
            break
        rules = _read(log, file, [RULES])
        rows += len(rules)
        names = pc.value_counts(pc.list_flatten(rules.column(RULES)))
        broke.update({rule_count["values"]: rule_count["counts"] for rule_count in names.to_pylist()})
    return rows, dict(broke.most_common())


def _newest(log: DeltaLog, files: list[LiveFile], limit: int) -> list[Row]:
    stored: list[tuple[dict[str, Any], LiveFile]] = []
    for file in files:
        if len(stored) >= limit:
            break
        rows = _read(log, file).sort_by([("_generation", "descending"), ("_batch", "descending")])
        stored += [(row, file) for row in _plain(rows.slice(0, limit - len(stored)))]
    committed_at = _commit_times(log, {_batch_key(row) for row, _ in stored})
    newest = [_row(row, committed_at.get(_batch_key(row), file.modified_at)) for row, file in stored]
    return sorted(newest, key=lambda row: row.at, reverse=True)


def _read(log: DeltaLog, file: LiveFile, columns: list[str] | None = None) -> Any:
    try:
        return parquet.ParquetFile(clients.readable(log.table / file.path)).read(columns)
    except (OSError, ValueError) as error:
        raise FlowBroken(
            f"{log.table / file.path} is missing or damaged ({error}): restore it from its backup"
        ) from error


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    columns = [[_value(scalar) for scalar in column] for column in rows.columns]
    return [dict(zip(rows.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def _value(scalar: Any) -> Any:
    """Returns a value as Python has it; as text if Python has none like it: text that is no UTF-8, a far time."""
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        pass
    match scalar:
        case pa.StructScalar():
            return {name: _value(value) for name, value in scalar.items()}
        case pa.MapScalar():
            return [tuple(map(_value, pair.values())) for pair in scalar.values]
        case pa.ListScalar() | pa.LargeListScalar():
            return [_value(value) for value in scalar.values]
        case pa.StringScalar() | pa.LargeStringScalar():
            return scalar.as_buffer().to_pybytes().decode(errors="backslashreplace")
    return f"{scalar.value} {scalar.type}"


def _batch_key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in BATCH_COLUMNS)


def _commit_times(log: DeltaLog, batches: set[tuple[Any, ...]]) -> dict[tuple[Any, ...], float]:
    """Returns when these batches were committed, in seconds since 1970, as far back as the log goes."""
    times: dict[tuple[Any, ...], float] = {}
    for commit in log.commits():
        if len(times) == len(batches):
            break
        batch = tuple(commit.metadata.get(name.removeprefix("_")) for name in BATCH_COLUMNS)
        if batch in batches:
            times.setdefault(batch, commit.timestamp)
    return times


def _row(row: dict[str, Any], at: float) -> Row:
    columns = {name: value for name, value in row.items() if name not in (*BATCH_COLUMNS, *QUARANTINE_COLUMNS)}
    if record := row.get(FAILED_RECORD):
        columns = _parsed(record)
    return Row(
        rules=list(row[RULES] or []),
        flow=row["_flow"],
        generation=row["_generation"],
        batch=row["_batch"],
        at=at,
        errors=row.get("_errors") or [],
        reason=row.get("_reason") or row.get(FAILED_REASON),
        origin={name: columns[name] for name in ORIGIN if columns.get(name) is not None},
        source_to=json.loads(row.get("_source") or "null"),
        row={name: value for name, value in columns.items() if name not in ORIGIN},
    )


def _parsed(record: str) -> dict[str, Any]:
    try:
        parsed = json.loads(record)
    except ValueError:
        # A long one is cut.
        return {FAILED_RECORD: record}
    return parsed if isinstance(parsed, dict) else {FAILED_RECORD: record}
