"""What the refreshes of a materialized view say of themselves in its log."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from include.errors import Unbalanced
from include.ledger.log import Commit, Log
from include.settings import settings

# Where a commit's stamp names its run.
RUN = "refresh"


@dataclass(frozen=True)
class Refresh:
    """The commit of one. read: by table, the version that was read. run_reads: the same of all views of its run.

    tally: what became of the rows that were computed, as `include.engine.quality.Tally`.
    """

    run: str
    read: dict[str, int]
    run_reads: dict[str, int]
    tally: dict[str, Any]
    commit: Commit


def of_commit(commit: Commit) -> Refresh | None:
    """None where it is no refresh."""
    said = commit.metadata
    return Refresh(said[RUN], said["read"], said["run_reads"], said["rows"], commit) if RUN in said else None


def words(commit: Commit) -> str:
    """What it did; nothing where it is no refresh."""
    if (done := of_commit(commit)) is None:
        return ""
    read = ", ".join(f"{table} version {version}" for table, version in done.read.items())
    return f"{done.tally['kept']:,} rows from {read}, in run '{done.run}'"


def of_view(view: str) -> Iterator[Refresh]:
    """Those whose commits its log still has, newest first; none before the first."""
    if settings().is_stored(view):
        yield from filter(None, map(of_commit, Log(settings().table_path(view)).commits()))


def newest(view: str) -> Refresh | None:
    """None before the first."""
    return next(of_view(view), None)


def in_run(view: str, run: str) -> Refresh | None:
    """None where the run has not refreshed it."""
    return next((one for one in of_view(view) if one.run == run), None)


def verify(view: str) -> list[str]:
    """Notes on what could not be compared. Raises Unbalanced where the view does not hold what its refresh counted."""
    done = newest(view)
    if done is None:
        return [f"{view}: no refresh of it is in its log"]
    tally, version = done.tally, done.commit.version
    if tally["read"] != tally["kept"] + tally["dropped"]:
        raise Unbalanced(f"{view}: run '{done.run}' computed {tally['read']:,} rows, and accounts for others: {tally}")
    held = [file.rows for file in Log(settings().table_path(view)).state.live]
    if None in held:
        return [f"{view}: its total was not compared with its refresh, as a file does not say its rows"]
    if (total := sum(filter(None, held))) != tally["kept"]:
        raise Unbalanced(f"{view} holds {total:,} rows, and its refresh, version {version}, {tally['kept']:,}")
    return []
