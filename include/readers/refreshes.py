"""What the refreshes of a materialized view say of themselves in its log."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltalake.exceptions import DeltaError

from include.errors import Broken, SluiceError, Unbalanced
from include.readers import active_commits
from include.readers.delta_log import Commit, Log
from include.settings import settings
from include.spec import Delta, Table

# Where a commit's stamp names its run, and those of its sources that held no rows.
RUN, EMPTY = "refresh", "empty_sources"


@dataclass(frozen=True)
class Refresh:
    """The commit of one. read: by table, the version that was read. run_reads: the same of all views of its run.

    tally: what became of the rows that were computed, as `include.engine.batch.quality.RowCounts`.
    empty: the tables that held no rows when they were read.
    """

    run: str
    read: dict[str, int]
    run_reads: dict[str, int]
    tally: dict[str, Any]
    commit: Commit
    empty: tuple[str, ...] = ()


def of_commit(commit: Commit) -> Refresh | None:
    """None where it is no refresh."""
    said = commit.metadata
    if RUN not in said:
        return None
    return Refresh(said[RUN], said["read"], said["run_reads"], said["rows"], commit, tuple(said.get(EMPTY, ())))


def words(commit: Commit) -> str:
    """What it did; nothing where it is no refresh."""
    if (done := of_commit(commit)) is None:
        return ""
    read = ", ".join(f"{table} version {version}" for table, version in done.read.items())
    return f"{done.tally['kept']:,} rows from {read}, in run '{done.run}'"


def lacking(views: Iterable[Table]) -> dict[str, str]:
    """By view, in graph order, a table that it reads and that nobody has stored, nor one of the views before it."""
    found: dict[str, str] = {}
    made: set[str] = set()
    for view in views:
        read = [one.source.table for one in view.readers if isinstance(one.source, Delta)]
        missing = next((table for table in read if table not in made and not settings().is_stored(table)), None)
        if missing:
            found[view.name] = missing
        else:
            made.add(view.name)
    return found


def not_refreshed(view: Table, table: str) -> str:
    """For whoever asked for a refresh: `table`, which it reads, is not stored."""
    return f"{view.name}: not refreshed, and left as it was: {table}, which it reads, holds no rows yet; {comes(view)}"


def comes(view: Table) -> str:
    """When it is refreshed next, in words."""
    by_hand = f"by `airflow dags trigger refresh.{view.name}`"
    return (
        f"it comes next by its schedule '{view.schedule}' (UTC), or {by_hand}" if view.schedule else f"next {by_hand}"
    )


def lacks(view: Table) -> str:
    """What a reader must know before they trust it, in words; nothing where all is well."""
    try:
        done = newest(view.name)
    except (SluiceError, DeltaError, OSError) as error:
        return str(error)
    if done and done.empty:
        return f"last refreshed when {' and '.join(done.empty)} held no rows; {comes(view)}"
    if done or settings().is_stored(view.name):
        # Its log may be too short to show its refresh.
        return ""
    missing = lacking([view]).get(view.name)
    return f"never refreshed{f': {missing}, which it reads, holds no rows yet' if missing else ''}; {comes(view)}"


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


def require_newest(view: str, run: str, read: Mapping[str, int]) -> None:
    """Raises Broken where the view holds what was made of newer versions than `read`, or one of these was undone."""
    held = _held(view)
    for table, version in read.items():
        log = Log(settings().table_path(table))
        newer = held.read.get(table, 0) if held else 0
        why = None
        # A newer one than there is was of another table, which this one has replaced.
        if held and version < newer <= log.newest:
            why = f"and run '{held.run}' has made it of version {newer} since"
        elif undone := active_commits.undone_by(log, version):
            restored = active_commits.restored_to(log, undone)
            why = f"which version {undone.version} took back since: it went back to {restored}"
        if why:
            raise Broken(
                f"{view}: run '{run}' reads {table} at version {version}, {why}; it is left as it was: begin another "
                f"run, which reads the tables as they are now",
                "REFRESH_OUTDATED",
            )


def _held(view: str) -> Refresh | None:
    """What made the rows that the view holds; None where its log does not say."""
    if not settings().is_stored(view):
        return None
    found = (of_commit(commit) for commit, stands in active_commits.commits(Log(settings().table_path(view))) if stands)
    return next(filter(None, found), None)


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
