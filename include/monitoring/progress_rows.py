"""Query progress as rows of the table `ledger.query_progress`: one for each report of a query, and one for its end."""

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from include.control.store.storable_text import storable
from include.monitoring import progress_journal
from include.readers import stored_rows
from include.settings import settings

TABLE = "ledger.query_progress"

# Columns of durations, and what Spark calls them. The first is the whole trigger.
PHASES_MS = {
    "trigger_execution_ms": "triggerExecution",
    "latest_offset_ms": "latestOffset",
    "get_batch_ms": "getBatch",
    "query_planning_ms": "queryPlanning",
    "wal_commit_ms": "walCommit",
    "add_batch_ms": "addBatch",
    "commit_offsets_ms": "commitOffsets",
}
STATE = {
    "operator": "operatorName",
    "rows": "numRowsTotal",
    "rows_updated": "numRowsUpdated",
    "rows_removed": "numRowsRemoved",
    "rows_late": "numRowsDroppedByWatermark",
    "memory_bytes": "memoryUsedBytes",
    "commit_ms": "commitTimeMs",
}
COUNT, RATE, TEXT = pa.int64(), pa.float64(), pa.string()
SCHEMA = pa.schema(
    {
        "day": pa.date32(),
        # 'batch', 'idle' (nothing was there to be read), 'failed' or 'ended' (it was asked to, or was done).
        "event": TEXT,
        # When the trigger began, or the query ended.
        "at": pa.timestamp("us", tz="UTC"),
        "flow": TEXT,
        "driver": TEXT,
        "generation": COUNT,
        "batch": COUNT,
        "query_id": TEXT,
        "run_id": TEXT,
        "source": TEXT,
        "start_offset": TEXT,
        "end_offset": TEXT,
        "latest_offset": TEXT,
        "source_metrics": pa.map_(TEXT, TEXT),
        "sink": TEXT,
        "input_rows": COUNT,
        "input_rows_per_second": RATE,
        "processed_rows_per_second": RATE,
        **dict.fromkeys(PHASES_MS, COUNT),
        "state": pa.list_(pa.struct({name: TEXT if name == "operator" else COUNT for name in STATE})),
        "error": TEXT,
        # As Spark wrote it.
        "raw": TEXT,
    }
)
SHOWN = [name for name in SCHEMA.names if name not in ("day", "raw")]


def rows(segment: Path) -> list[dict[str, Any]]:
    """What a segment of a journal holds, by columns; a line that its driver could not end is named and left out."""
    found = []
    for number, line in enumerate(segment.read_bytes().splitlines(), 1):
        try:
            found.append(_row(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            print(f"sluice: {segment}: line {number} is no query progress, left out: {error!r}", file=sys.stderr)
    return found


def _row(line: dict[str, Any]) -> dict[str, Any]:
    raw = line.get("report")
    told = line["ending"] if raw is None else json.loads(raw)
    at = datetime.fromisoformat(told["timestamp"]).astimezone(UTC)
    row = {name: line[name] for name in ("flow", "driver", "generation")}
    row |= {"day": at.date(), "at": at, "query_id": told["id"], "run_id": told["runId"], "batch": told["batchId"]}
    if raw is None:
        error = told["error"]
        return row | {"event": "failed" if error else "ended", "error": error and storable(error)}
    return row | _measured(told) | _counted(told, line.get("rows")) | {"raw": raw}


def _counted(report: dict[str, Any], rows: int | None) -> dict[str, Any]:
    """rows: of a batch, by the driver's own count, where it has one: Spark does not know what it did not read."""
    known, spent_ms = report["numInputRows"], report["durationMs"]
    into, out_of = report.get("inputRowsPerSecond"), report.get("processedRowsPerSecond")
    if not known and rows and "addBatch" in spent_ms:
        known, into, out_of = rows, None, rows * 1000 / max(1, spent_ms["triggerExecution"])
    return {"input_rows": known, "input_rows_per_second": into, "processed_rows_per_second": out_of}


def _measured(report: dict[str, Any]) -> dict[str, Any]:
    # A flow has one source.
    source, spent_ms = report["sources"][0], report["durationMs"]
    return {
        "event": "batch" if "addBatch" in spent_ms else "idle",
        "source": source["description"],
        **{f"{which}_offset": _text(source.get(f"{which}Offset")) for which in ("start", "end", "latest")},
        "source_metrics": source.get("metrics") or {},
        "sink": report["sink"]["description"],
        **{column: spent_ms.get(phase) for column, phase in PHASES_MS.items()},
        "state": [{name: one.get(key) for name, key in STATE.items()} for one in report["stateOperators"]],
    }


def _text(offset: Any) -> str | None:
    return None if offset is None else json.dumps(offset)


def as_arrow(found: list[dict[str, Any]]) -> Any:
    """A flow's rows side by side, so that a reader of one flow can skip the others."""
    return pa.Table.from_pylist(sorted(found, key=lambda row: (row["flow"], row["at"])), schema=SCHEMA)


def stored() -> DeltaTable | None:
    """The table; None before the first gathering."""
    with suppress(TableNotFoundError):
        return DeltaTable(str(settings().table_path(TABLE)))
    return None


def newest(flow: str, limit: int) -> list[dict[str, Any]]:
    """The newest `limit` rows of a flow, newest first, without `day` and `raw`: those of the table, and of journals."""
    # Before the table is read, or what is gathered in between would be in neither.
    found = [row for segment in progress_journal.segments() for row in _rows_if_there(segment) if row["flow"] == flow]
    if (table := stored()) is not None:
        found += _newest_stored(table, flow, limit)
    unique = {(row["at"], row["run_id"], row["event"]): {name: row.get(name) for name in SHOWN} for row in found}
    return [unique[key] for key in sorted(unique, reverse=True)[:limit]]


def _rows_if_there(segment: Path) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError):
        return rows(segment)
    # It was claimed at this moment; or else it is in the table by now.
    for claim in settings().journals.glob("claimed-*"):
        with suppress(FileNotFoundError):
            return rows(claim / segment.name)
    return []


def _newest_stored(table: DeltaTable, flow: str, limit: int) -> list[dict[str, Any]]:
    data = stored_rows.dataset(TABLE, table)
    found: list[dict[str, Any]] = []
    for day in sorted({str(one["day"]) for one in table.partitions()}, reverse=True):
        if len(found) >= limit:
            break
        mine = (pc.field("day") == pa.scalar(day).cast(pa.date32())) & (pc.field("flow") == flow)
        found += data.scanner(columns=SHOWN, filter=mine).to_table().sort_by([("at", "descending")])[:limit].to_pylist()
    return found
