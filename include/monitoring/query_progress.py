"""The reports of queries: drivers write them into journals, and `gather` moves them into `ledger.query_progress`.

A driver appends to one segment at a time, a file that it holds locked. The kernel releases the lock when the driver
dies. So a segment that can be locked is finished, however its driver ended. `gather` is the table's only writer.
"""

import fcntl
import json
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError

from include import logs
from include.control.store.storable_text import storable
from include.delta import stored_table
from include.delta.delta_log import DeltaLog
from include.errors import SluiceError, Unreachable
from include.lake import clients, locations
from include.retention import JOURNAL_BYTES, PROGRESS_DAYS
from include.settings import settings
from include.spec import table_of

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
# The events: a batch, a trigger without new data, and how a query ended: by an error, or stopped or completed.
BATCH, IDLE, FAILED, ENDED = "batch", "idle", "failed", "ended"
COUNT, RATE, TEXT = pa.int64(), pa.float64(), pa.string()
SCHEMA = pa.schema(
    {
        "day": pa.date32(),
        "event": TEXT,
        # When the trigger began, or the query ended.
        "at": pa.timestamp("us", tz="UTC"),
        "flow": TEXT,
        "driver": TEXT,
        # Of the driver, when the report was journaled; NULL where nobody scales it.
        "executors": COUNT,
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
        # That its commit has added, changed or deleted; NULL for a batch without a commit.
        "output_rows": COUNT,
        **dict.fromkeys(PHASES_MS, COUNT),
        "state": pa.list_(pa.struct({name: TEXT if name == "operator" else COUNT for name in STATE})),
        "error": TEXT,
        # Spark's progress report as JSON, and beside it the driver's counts of the batch as `driver`.
        "raw": TEXT,
    }
)
SHOWN = [name for name in SCHEMA.names if name not in ("day", "raw")]


def rows_of(segment: Path, containing: bytes = b"") -> list[dict[str, Any]]:
    """Returns a journal segment's rows by column. An incomplete line is reported on stderr and skipped.

    containing: parses only lines with this text, because parsing is slow.
    """
    parsed = []
    for number, line in enumerate(segment.read_bytes().splitlines(), 1):
        if containing not in line:
            continue
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
        "executors": line.get("executors"),
        "day": occurred_at.date(),
        "at": occurred_at,
        "query_id": event["id"],
        "run_id": event["runId"],
        "batch": event["batchId"],
    }
    if raw is None:
        error = event["error"]
        return row | {"event": FAILED if error else ENDED, "error": error and storable(error)}
    # Drivers of an earlier release name the rows that they have read `rows`.
    counts = {
        "read": line.get("read", line.get("rows")),
        "written": line.get("written"),
        "seconds": line.get("seconds"),
    }
    if "addBatch" not in event["durationMs"]:
        counts = dict.fromkeys(counts)
    if any(counts.values()):
        raw = f'{raw.rstrip()[:-1]}, "driver": {json.dumps(counts)}}}'
    return row | _source_and_phases(event) | _row_counts(event, **counts) | {"raw": raw}


def _row_counts(report: dict[str, Any], read: int | None, written: int | None, seconds: float | None) -> dict[str, Any]:
    """Returns the row counts and rates of a report.

    read, written, seconds: the driver's own counts. Spark does not count what it does not read or write itself, and
    takes the time since the last trigger, which may have found nothing.
    """
    input_rows, spent_ms = report["numInputRows"], report["durationMs"]
    input_rate, processed_rate = report.get("inputRowsPerSecond"), report.get("processedRowsPerSecond")
    if not input_rows and read:
        input_rows, input_rate, processed_rate = read, None, read * 1000 / max(1, spent_ms["triggerExecution"])
    if seconds:
        input_rate = input_rows / seconds
    rates = {"input_rows_per_second": input_rate, "processed_rows_per_second": processed_rate}
    return {"input_rows": input_rows, **rates, "output_rows": written}


# So many commits of a table are searched for batches whose rows no driver has counted.
MOST_SEARCHED_COMMITS = 200


def add_output_rows(progress_rows: Iterable[dict[str, Any]]) -> None:
    """Sets `output_rows` where the driver does not know them, because Spark wrote the batch, from the table's log."""
    unknown: dict[str, dict[tuple[str, int, int], dict[str, Any]]] = {}
    for row in progress_rows:
        if row["event"] == BATCH and row["output_rows"] is None:
            key = (row["flow"], row["generation"], row["batch"])
            unknown.setdefault(table_of(row["flow"]), {})[key] = row
    for table, batches in unknown.items():
        with suppress(SluiceError, OSError, ValueError, KeyError):
            for commit in islice(DeltaLog(locations.table_path(table)).commits(), MOST_SEARCHED_COMMITS):
                key = (str(commit.metadata.get("flow")), *(commit.batch or (-1, -1)))
                if key in batches:
                    row = batches.pop(key)
                    row["output_rows"] = sum(commit.merged.values()) if commit.merged else commit.rows
                if not batches:
                    break


def _source_and_phases(report: dict[str, Any]) -> dict[str, Any]:
    # A flow has one source.
    source, spent_ms = report["sources"][0], report["durationMs"]
    return {
        "event": BATCH if "addBatch" in spent_ms else IDLE,
        "source": source["description"],
        **{f"{which}_offset": _json_text(source.get(f"{which}Offset")) for which in ("start", "end", "latest")},
        "source_metrics": source.get("metrics") or {},
        "sink": report["sink"]["description"],
        **{column: spent_ms.get(phase) for column, phase in PHASES_MS.items()},
        "state": [{name: operator.get(key) for name, key in STATE.items()} for operator in report["stateOperators"]],
    }


def _json_text(offset: Any) -> str | None:
    return None if offset is None else json.dumps(offset)


def waiting(containing: bytes = b"") -> list[dict[str, Any]]:
    """Returns the rows in the journals that may not be gathered yet, of all flows. containing: as for `rows_of`."""
    return [row for segment in segments() for row in _rows_if_there(segment, containing)]


def waiting_batches() -> list[dict[str, Any]]:
    """Returns the rows of `waiting` that are batches, which are few among idle triggers."""
    return [row for row in waiting(b"addBatch") if row["event"] == BATCH]


def as_arrow(progress_rows: list[dict[str, Any]]) -> Any:
    """Returns an Arrow table with the columns of SCHEMA.

    It is sorted by flow, so that readers of one flow can skip the row groups of others.
    """
    return pa.Table.from_pylist(sorted(progress_rows, key=lambda row: (row["flow"], row["at"])), schema=SCHEMA)


def newest(flow: str, limit: int) -> list[dict[str, Any]]:
    """Returns the newest `limit` rows of a flow, newest first, without `day` and `raw`, from table and journals."""
    # Reading the journals first finds rows that are gathered meanwhile in at least one place.
    progress = [row for row in waiting() if row["flow"] == flow]
    if (table := stored_table.find_table(TABLE)) is not None:
        progress += _newest_stored(table, flow, limit)
    unique = {(row["at"], row["run_id"], row["event"]): {name: row.get(name) for name in SHOWN} for row in progress}
    return [unique[key] for key in sorted(unique, reverse=True)[:limit]]


def _rows_if_there(segment: Path, containing: bytes) -> list[dict[str, Any]]:
    with suppress(FileNotFoundError):
        return rows_of(segment, containing)
    # The segment was claimed meanwhile, or it is in the table already.
    for claim in settings().journals.glob("claimed-*"):
        with suppress(FileNotFoundError):
            return rows_of(claim / segment.name, containing)
    return []


def _newest_stored(table: DeltaTable, flow: str, limit: int) -> list[dict[str, Any]]:
    dataset = stored_table.dataset(TABLE, table)
    newest_rows: list[dict[str, Any]] = []
    for day in sorted({str(partition["day"]) for partition in table.partitions()}, reverse=True):
        if len(newest_rows) >= limit:
            break
        is_of_flow = (pc.field("day") == pa.scalar(day).cast(pa.date32())) & (pc.field("flow") == flow)
        newest_rows += (
            # A table of an older build lacks new columns until its next commit.
            dataset.scanner(columns=[name for name in SHOWN if name in dataset.schema.names], filter=is_of_flow)
            .to_table()
            .sort_by([("at", "descending")])[:limit]
            .to_pylist()
        )
    return newest_rows


APP = "gather"
# The journal bytes of one commit. Writing them takes about 15 times as much memory.
MOST_BYTES = 16_000_000
# With one commit a minute, a day is compacted about once an hour.
MOST_FILES_A_DAY = 60
PROPERTIES = {
    "delta.dataSkippingStatsColumns": "event,at,flow,generation,batch",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.logRetentionDuration": "interval 2 days",
}


def gather() -> int | None:
    """Appends all finished segments in one commit. Returns the number of rows; None while another process gathers.

    Each row is written once, even if the process is killed. The segments of commit N are first moved into `claimed-N`.
    The commit has the transaction version N. The folder is deleted once the table has that version.
    Raises Unreachable where the table or the journals cannot be read or written. Nothing is lost then.
    """
    try:
        with _gather_lock() as is_alone:
            return _gather() if is_alone else None
    except (DeltaError, OSError) as error:
        raise Unreachable(
            f"{TABLE}: gathering broke off, and what is not in the table stays in {settings().journals}: {error}"
        ) from error


@contextmanager
def _gather_lock() -> Iterator[bool]:
    """Yields whether no other process gathers. The kernel releases the lock when this process dies."""
    settings().journals.mkdir(parents=True, exist_ok=True)
    with (settings().journals / "gather.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _gather() -> int:
    table = stored_table.find_table(TABLE)
    committed = (table.transaction_version(APP) if table else None) or 0
    claim = _claim(committed)
    if claim is None:
        return 0
    segments = sorted(claim.glob("*.jsonl"))
    rows = [row for segment in segments for row in rows_of(segment)]
    add_output_rows(rows)
    if rows:
        _append(table, rows, _claim_number(claim))
    shutil.rmtree(claim)
    # The commit is part of `table`. In a store, each look at a log costs many requests.
    compact_and_expire(table or stored_table.open_table(TABLE))
    return len(rows)


def _claim(committed: int) -> Path | None:
    """Returns the folder with the segments of the next commit; None where there are none."""
    number = committed + 1
    for claim in settings().journals.glob("claimed-*"):
        if _claim_number(claim) <= committed:
            shutil.rmtree(claim)
        else:
            # The table does not have its commit.
            number = _claim_number(claim)
    claim = settings().journals / f"claimed-{number}"
    claim.mkdir(exist_ok=True)
    claimed_bytes = sum(size_of(segment) for segment in claim.glob("*.jsonl"))
    for segment in sorted(settings().journals.glob("*.jsonl")):
        if claimed_bytes < MOST_BYTES and claim_segment(segment, claim):
            claimed_bytes += size_of(claim / segment.name)
    if any(claim.iterdir()):
        return claim
    claim.rmdir()
    return None


def _claim_number(claim: Path) -> int:
    return int(claim.name.removeprefix("claimed-"))


def _append(table: DeltaTable | None, rows: list[dict[str, object]], number: int) -> None:
    uri, options = clients.delta_rs(locations.table_path(TABLE))
    write_deltalake(
        table or uri,
        as_arrow(rows),
        mode="append",
        storage_options=None if table else options,
        partition_by="day",
        schema_mode="merge",
        configuration=PROPERTIES,
        writer_properties=WriterProperties(compression="ZSTD", compression_level=3),
        commit_properties=CommitProperties(app_transactions=[Transaction(APP, number)]),
    )


def compact_and_expire(table: DeltaTable) -> None:
    """Compacts days with many files, and deletes days older than PROGRESS_DAYS. table: at its newest version."""
    oldest = (datetime.now(UTC) - timedelta(days=PROGRESS_DAYS)).date()
    files = Counter(day for path in table.file_uris() for day in re.findall(r"/day=([0-9-]+)/", path))
    fragmented_days = [day for day, count in files.items() if count >= MOST_FILES_A_DAY]
    if min(files, default=str(oldest)) >= str(oldest) and not fragmented_days:
        return
    table.delete(f"day < '{oldest}'")
    for day in fragmented_days:
        table.optimize.compact(partition_filters=[("day", "=", day)])
    table.vacuum(dry_run=False)


SEGMENT_BYTES = 8_000_000
SEGMENT_SECONDS = 30


class Journal:
    """A driver's journal. It accepts no more lines while all journals together hold `JOURNAL_BYTES`."""

    def __init__(self) -> None:
        self._folder = settings().journals
        self._segment: FileIO | None = None
        self._opened_at = 0.0
        self._finished: Path | None = None

    def write(self, lines: list[str]) -> None:
        """Appends lines. Raises OSError.

        After an error some of the lines may be written. An incomplete line can only be the last one of a segment.
        """
        if not lines:
            return
        if self._segment is not None and not self._path.exists():
            # Writes to a deleted file would be lost without an error.
            self.finish()
        segment = self._segment or self._begin()
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            while data:
                data = data[segment.write(data) :]
        except OSError:
            self.finish()
            raise

    def turn(self) -> None:
        """Finishes the segment once it is old or large.

        Old segments wait until the last one is gathered. Raises OSError.
        """
        if self._segment is None:
            return
        is_old = time.monotonic() - self._opened_at >= SEGMENT_SECONDS
        is_fetched = self._finished is None or not self._finished.exists()
        if (is_old and is_fetched) or self._segment.tell() >= SEGMENT_BYTES:
            self.finish()

    def finish(self) -> None:
        """Makes the segment ready to be gathered. The next line begins another segment."""
        if self._segment is not None:
            self._finished, segment = self._path, self._segment
            self._segment = None
            segment.close()

    @property
    def _path(self) -> Path:
        assert self._segment is not None
        return Path(str(self._segment.name)).with_suffix(".jsonl")

    def _begin(self) -> FileIO:
        waiting = sum(size_of(segment) for segment in segments())
        if waiting >= JOURNAL_BYTES:
            raise OSError(f"{waiting / 1e6:,.0f} MB of query progress wait in {self._folder} to be gathered")
        self._folder.mkdir(parents=True, exist_ok=True)
        # It gets its final name only when it is locked.
        segment = FileIO(self._folder / f"{time.time_ns()}.new", "x")
        fcntl.flock(segment, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(str(segment.name)).rename(Path(str(segment.name)).with_suffix(".jsonl"))
        self._segment, self._opened_at = segment, time.monotonic()
        return segment


def size_of(segment: Path) -> int:
    """Returns the size in bytes; 0 for a segment that was moved meanwhile."""
    with suppress(FileNotFoundError):
        return segment.stat().st_size
    return 0


def segments() -> list[Path]:
    """Returns all segments that may not be gathered yet, oldest first."""
    # Segments move from waiting to claimed, so this order misses none.
    waiting = sorted(settings().journals.glob("*.jsonl"))
    claimed = [segment for claim in settings().journals.glob("claimed-*") for segment in _segments_of_claim(claim)]
    return [*claimed, *waiting]


def _segments_of_claim(claim: Path) -> list[Path]:
    # A claim is deleted once its segments are gathered.
    with suppress(FileNotFoundError):
        return sorted(path for path in claim.iterdir() if path.suffix == ".jsonl")
    return []


def claim_segment(segment: Path, claim: Path) -> bool:
    """Moves a finished segment into the folder `claim`. Returns False where its driver still writes it."""
    with segment.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        segment.rename(claim / segment.name)
    return True
