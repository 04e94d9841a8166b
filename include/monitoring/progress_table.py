"""Gathers the journals of all drivers into the table `ledger.query_progress`, whose only writer it is."""

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

from include.errors import Unreachable
from include.monitoring import progress_journal, progress_rows
from include.monitoring.progress_rows import TABLE
from include.retention import PROGRESS_DAYS
from include.settings import settings

APP = "gather"
# Of one commit, which is made in memory, of some fifteen times as many.
MOST_BYTES = 16_000_000
# One commit a minute: about once an hour.
MOST_FILES_A_DAY = 60
PROPERTIES = {
    "delta.dataSkippingStatsColumns": "event,at,flow,generation,batch",
    "delta.deletedFileRetentionDuration": "interval 1 days",
    "delta.logRetentionDuration": "interval 2 days",
}


def gather() -> int | None:
    """Append what finished segments hold, in one commit; returns how many rows, or None where another is at it.

    Each row comes into the table once, whenever this is killed: the segments of commit N are first moved into the
    folder `claimed-N`, the commit bears N as its transaction, and the folder is deleted when the table holds N.
    Raises Unreachable where the table or the journals cannot be read or written; nothing is lost then.
    """
    try:
        with _alone() as is_alone:
            return _gather() if is_alone else None
    except (DeltaError, OSError) as error:
        raise Unreachable(
            f"{TABLE}: gathering broke off, and what is not in the table stays in {settings().journals}: {error}"
        ) from error


@contextmanager
def _alone() -> Iterator[bool]:
    """Whether nobody else gathers; the kernel unlocks it when this process dies."""
    settings().journals.mkdir(parents=True, exist_ok=True)
    with (settings().journals / "gather.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def _gather() -> int:
    table = progress_rows.stored()
    done = (table.transaction_version(APP) if table else None) or 0
    claim = _claim(done)
    if claim is None:
        return 0
    segments = sorted(claim.glob("*.jsonl"))
    rows = [row for segment in segments for row in progress_rows.rows(segment)]
    if rows:
        _append(rows, _number(claim))
    shutil.rmtree(claim)
    tidy()
    return len(rows)


def _claim(done: int) -> Path | None:
    """The folder of the next commit with its segments; None where there are none."""
    number = done + 1
    for claim in settings().journals.glob("claimed-*"):
        if _number(claim) <= done:
            shutil.rmtree(claim)
        else:
            # Its commit did not happen.
            number = _number(claim)
    claim = settings().journals / f"claimed-{number}"
    claim.mkdir(exist_ok=True)
    taken = sum(progress_journal.size(segment) for segment in claim.glob("*.jsonl"))
    for segment in sorted(settings().journals.glob("*.jsonl")):
        if taken < MOST_BYTES and progress_journal.take(segment, claim):
            taken += progress_journal.size(claim / segment.name)
    if any(claim.iterdir()):
        return claim
    claim.rmdir()
    return None


def _number(claim: Path) -> int:
    return int(claim.name.removeprefix("claimed-"))


def _append(rows: list[dict[str, object]], number: int) -> None:
    write_deltalake(
        settings().table_path(TABLE),
        progress_rows.as_arrow(rows),
        mode="append",
        partition_by="day",
        schema_mode="merge",
        configuration=PROPERTIES,
        writer_properties=WriterProperties(compression="ZSTD", compression_level=3),
        commit_properties=CommitProperties(app_transactions=[Transaction(APP, number)]),
    )


def tidy() -> None:
    """Compact a day of many files, and forget what is older than it is kept."""
    table = DeltaTable(str(settings().table_path(TABLE)))
    oldest = (datetime.now(UTC) - timedelta(days=PROGRESS_DAYS)).date()
    files = Counter(day for path in table.file_uris() for day in re.findall(r"/day=([0-9-]+)/", path))
    crowded = [day for day, count in files.items() if count >= MOST_FILES_A_DAY]
    if min(files) >= str(oldest) and not crowded:
        return
    table.delete(f"day < '{oldest}'")
    for day in crowded:
        table.optimize.compact(partition_filters=[("day", "=", day)])
    table.vacuum(dry_run=False)
