"""Rows of the table `ledger.query_progress`: one for each progress report of a query, and one for its end."""

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from include import logs
from include.control.store.storable_text import storable
from include.delta import stored_table
from include.monitoring import progress_journal
from include.settings import settings

TABLE = "ledger.query_progress"

# Columns of durations in milliseconds, with Spark's names. The first covers the whole trigger.
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
        # 'batch', 'idle' (no new data), 'failed' or 'ended' (stopped or completed).
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
        # Spark's progress report as JSON.
        "raw": TEXT,
    }
)
SHOWN = [name for name in SCHEMA.names if name not in ("day", "raw")]


def rows(segment: Path) -> list[dict[str, Any]]:
    """Returns a journal segment's rows by column. An incomplete line is reported on stderr and skipped."""
    parsed = []
    for number, line in enumerate(segment.read_bytes().splitlines(), 1):
        try:
            parsed.append(_row(json.loads(line)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            logs.warning(f"{segment}: line {number} is no query progress, left out: {error!r}")
    return parsed


def _row(line: dict[str, Any]) -> dict[str, Any]:
    raw = line.get("report")
    event = line["ending"] if raw is None else json.loads(raw)
    occurred_at = datetime.fromisoformat(event["timestamp"]).astimezone(UTC)
    row = {name: line[name] for name in ("flow", "driver", "generation")}
    row |= {
        "day": occurred_at.date(),
        "at": occurred_at,
        "query_id": event["id"],
        "run_id": event["runId"],
        "batch": event["batchId"],
    }
    if raw is None:
        error = event["error"]
        return row | {"event": "failed" if error else "ended", "error": error and storable(error)}
    return row | _source_and_phases(event) | _row_counts(event, line.get("rows")) | {"raw": raw}


def _row_counts(report: dict[str, Any], rows: int | None) -> dict[str, Any]:
    """Returns the row counts and rates of a report.

    rows: the driver's own count of the batch, where Spark does not count because it did not read the rows itself.
    """
    input_rows, spent_ms = report["numInputRows"], report["durationMs"]
    input_rate, processed_rate = report.get("inputRowsPerSecond"), report.get("processedRowsPerSecond")
    if not input_rows and rows and "addBatch" in spent_ms:
        input_rows, input_rate, processed_rate = rows, None, rows * 1000 / max(1, spent_ms["triggerExecution"])
    return {"input_rows": input_rows, "input_rows_per_second": input_rate, "processed_rows_per_second": processed_rate}


def _source_and_phases(report: dict[str, Any]) -> dict[str, Any]:
    # A flow has one source.
    source, spent_ms = report["sources"][0], report["durationMs"]
    return {
        "event": "batch" if "addBatch" in spent_ms else "idle",
        "source": source["description"],
        **{f"{which}_offset": _json_text(source.get(f"{which}Offset")) for which in ("start", "end", "latest")},
        "source_metrics": source.get("metrics") or {},
        "sink": report["sink"]["description"],
        **{column: spent_ms.get(phase) for column, phase in PHASES_MS.items()},
        "state": [{name: operator.get(key) for name, key in STATE.items()} for operator in report["stateOperators"]],
    }


def _json_text(offset: Any) -> str | None:
    return None if offset is None else json.dumps(offset)


def as_arrow(progress_rows: list[dict[str, Any]]) -> Any:
    """Returns an Arrow table with the columns of SCHEMA.

    It is sorted by flow, so that readers of one flow can skip the row groups of others.
    """
    return pa.Table.from_pylist(sorted(progress_rows, key=lambda row: (row["flow"], row["at"])), schema=SCHEMA)


def newest(flow: str, limit: int) -> list[dict[str, Any]]:
    """Returns the newest `limit` rows of a flow, newest first, without `day` and `raw`, from table and journals."""
    # Reading the journals first finds rows that are gathered meanwhile in at least one place.
    progress = [
        row for segment in progress_journal.segments() for row in _rows_if_there(segment) if row["flow"] == flow
    ]
    if (table := stored_table.find_table(TABLE)) is not None:
        progress += _newest_stored(table, flow, limit)
    unique = {(row["at"], row["run_id"], row["event"]): {name: row.get(name) for name in SHOWN} for row in progress}
    return [unique[key] for key in sorted(unique, reverse=True)[:limit]]


def _rows_if_there(segment: Path) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError):
        return rows(segment)
    # The segment was claimed meanwhile, or it is in the table already.
    for claim in settings().journals.glob("claimed-*"):
        with suppress(FileNotFoundError):
            return rows(claim / segment.name)
    return []


def _newest_stored(table: DeltaTable, flow: str, limit: int) -> list[dict[str, Any]]:
    dataset = stored_table.dataset(TABLE, table)
    newest_rows: list[dict[str, Any]] = []
    for day in sorted({str(partition["day"]) for partition in table.partitions()}, reverse=True):
        if len(newest_rows) >= limit:
            break
        is_of_flow = (pc.field("day") == pa.scalar(day).cast(pa.date32())) & (pc.field("flow") == flow)
        newest_rows += (
            dataset.scanner(columns=SHOWN, filter=is_of_flow)
            .to_table()
            .sort_by([("at", "descending")])[:limit]
            .to_pylist()
        )
    return newest_rows
