"""Moves the journals of all drivers into the table `ledger.query_progress`. It is the table's only writer."""

import fcntl
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import DeltaError

from include.delta import stored_table
from include.errors import Unreachable
from include.lake import object_store
from include.monitoring import progress_journal, progress_rows
from include.monitoring.progress_rows import TABLE
from include.retention import PROGRESS_DAYS
from include.settings import settings

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
    rows = [row for segment in segments for row in progress_rows.rows(segment)]
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
    claimed_bytes = sum(progress_journal.size(segment) for segment in claim.glob("*.jsonl"))
    for segment in sorted(settings().journals.glob("*.jsonl")):
        if claimed_bytes < MOST_BYTES and progress_journal.claim_segment(segment, claim):
            claimed_bytes += progress_journal.size(claim / segment.name)
    if any(claim.iterdir()):
        return claim
    claim.rmdir()
    return None


def _claim_number(claim: Path) -> int:
    return int(claim.name.removeprefix("claimed-"))


def _append(table: DeltaTable | None, rows: list[dict[str, object]], number: int) -> None:
    uri, options = object_store.delta_rs(settings().table_path(TABLE))
    write_deltalake(
        table or uri,
        progress_rows.as_arrow(rows),
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
