"""Reads the refreshes of a materialized view from its log."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from deltalake.exceptions import DeltaError

from include.delta import commit_history
from include.delta.commit_history import RecomputeNeeded, appends_rows, other_change
from include.delta.delta_log import Commit, DeltaLog
from include.errors import FlowBroken, LedgerMismatch, SluiceError
from include.lake import locations
from include.spec import Table

# The userMetadata keys of a refresh's run, of its sources that held no rows, of its pinned sources, and of how it
# computed the rows.
RUN, EMPTY, AS_OF, METHOD = "refresh", "empty_sources", "as_of", "method"


@dataclass(frozen=True)
class Method:
    """How a refresh computed its rows. Commits of older releases lack it.

    definition: SHA-256 of the view's declaration and plan. table_ids: Delta's id of each table that it read.
    recomputed: why it computed all rows; None if it was incremental.
    based_on: the version of the view to which it added rows; None if it wrote all of them.
    added: row counts of what it added, as `include.engine.rows.quality.RowCounts`; None if it wrote all of them.
    """

    definition: str
    table_ids: dict[str, str]
    recomputed: str | None
    based_on: int | None = None
    added: dict[str, Any] | None = None


@dataclass(frozen=True)
class Refresh:
    """A refresh and its commit. tally: row counts, as `include.engine.rows.quality.RowCounts`.

    read: the version of each table that it read. run_reads: the same for all views of its run.
    empty: the tables that held no rows when it read them. as_of: table and version of each pinned source.
    """

    run: str
    read: dict[str, int]
    run_reads: dict[str, int]
    tally: dict[str, Any]
    commit: Commit
    empty: tuple[str, ...] = ()
    as_of: tuple[tuple[str, int], ...] = ()
    method: Method | None = None

    @property
    def all_read(self) -> list[tuple[str, int]]:
        """Each table and version that it read."""
        return list(dict.fromkeys([*self.read.items(), *self.as_of]))


def of_commit(commit: Commit) -> Refresh | None:
    """Returns the refresh that made the commit; None for any other commit."""
    metadata = commit.metadata
    if RUN not in metadata:
        return None
    return Refresh(
        *(metadata[RUN], metadata["read"], metadata["run_reads"], metadata["rows"], commit),
        empty=tuple(metadata.get(EMPTY, ())),
        as_of=tuple((source["table"], source["version"]) for source in metadata.get(AS_OF, {}).values()),
        method=Method(**metadata[METHOD]) if METHOD in metadata else None,
    )


def describe(commit: Commit) -> str:
    """Describes a refresh in words; empty for any other commit."""
    if (refresh := of_commit(commit)) is None:
        return ""
    read = ", ".join(f"{table} version {version}" for table, version in refresh.all_read)
    added = f" ({refresh.method.added['kept']:,} new)" if refresh.method and refresh.method.added else ""
    return f"{refresh.tally['kept']:,} rows{added} from {read}, in run '{refresh.run}'"


def missing_sources(views: Iterable[Table]) -> dict[str, str]:
    """Returns the views that cannot be refreshed, in graph order, each with a missing table that it reads.

    A table is missing if it is not stored and none of the previous views makes it.
    """
    missing_tables: dict[str, str] = {}
    refreshable: set[str] = set()
    for view in views:
        read = [source.table for source in view.upstream]
        missing = next((table for table in read if table not in refreshable and not locations.is_stored(table)), None)
        if missing:
            missing_tables[view.name] = missing
        else:
            refreshable.add(view.name)
    return missing_tables


def not_refreshed_words(view: Table, table: str) -> str:
    """Explains that a view was not refreshed because `table`, which it reads, is not stored."""
    why = f"{table}, which it reads, holds no rows yet"
    return f"{view.name}: not refreshed, and left as it was: {why}; {next_refresh_words(view)}"


def not_loaded_words(view: Table, awaited: str) -> str:
    """Explains that a view was not refreshed, because of the first loads that `awaited` describes."""
    return f"{view.name}: not refreshed: {awaited}; {next_refresh_words(view)}"


def next_refresh_words(view: Table) -> str:
    """Describes when the view is refreshed next."""
    form = shlex.quote(json.dumps({"table": view.name}))
    by_hand = f"by `airflow dags trigger refresh -c {form}`"
    if view.refreshed_by:
        return f"it comes next when {' or '.join(view.refreshed_by)} has new rows, or {by_hand}"
    return f"it comes next by its schedule '{view.cron}' (UTC), or {by_hand}" if view.cron else f"next {by_hand}"


def staleness_words(view: Table) -> str:
    """Describes what is wrong with the view's rows; empty where all is well."""
    try:
        refresh = newest(view.name)
    except (SluiceError, DeltaError, OSError) as error:
        return str(error)
    if refresh and refresh.empty:
        return f"last refreshed when {' and '.join(refresh.empty)} held no rows; {next_refresh_words(view)}"
    if refresh or locations.is_stored(view.name):
        # The log may no longer have the refresh.
        return ""
    missing = missing_sources([view]).get(view.name)
    why = f": {missing}, which it reads, holds no rows yet" if missing else ""
    return f"never refreshed{why}; {next_refresh_words(view)}"


def newest_method(view: str) -> Method | None:
    """Returns how the view's newest refresh computed its rows; None where that is not known."""
    try:
        refresh = newest(view)
    except (SluiceError, DeltaError, OSError):
        return None
    return refresh.method if refresh else None


def of_view(view: str) -> Iterator[Refresh]:
    """Yields the refreshes in the view's log, newest first."""
    if locations.is_stored(view):
        yield from filter(None, map(of_commit, DeltaLog(locations.table_path(view)).commits()))


def newest(view: str) -> Refresh | None:
    """Returns the newest refresh; None before the first."""
    return next(of_view(view), None)


def in_run(view: str, run: str) -> Refresh | None:
    """Returns the refresh of a run; None where the run has not refreshed the view."""
    return next((refresh for refresh in of_view(view) if refresh.run == run), None)


def require_newest(view: str, run: str, read: Mapping[str, int]) -> None:
    """Raises FlowBroken if the view was refreshed from versions newer than `read`, or one in `read` was undone."""
    active = _active_refresh(view)
    for table, version in read.items():
        log = DeltaLog(locations.table_path(table))
        active_version = active.read.get(table, 0) if active else 0
        why = None
        # A version beyond the newest one belongs to an earlier table of this name.
        if active and version < active_version <= log.newest:
            why = f"and run '{active.run}' has made it of version {active_version} since"
        elif restore := commit_history.undone_by(log, version):
            restored = commit_history.restored_to(log, restore)
            why = f"which version {restore.version} took back since: it went back to {restored}"
        if why:
            raise FlowBroken(
                f"{view}: run '{run}' reads {table} at version {version}, {why}; it is left as it was: begin another "
                f"run, which reads the tables as they are now",
                "REFRESH_OUTDATED",
            )


def _active_refresh(view: str) -> Refresh | None:
    """Returns the active refresh, whose rows the view holds; None where its log does not have one."""
    if not locations.is_stored(view):
        return None
    active = (
        of_commit(commit)
        for commit, is_active in commit_history.commits_with_activity(DeltaLog(locations.table_path(view)))
        if is_active
    )
    return next(filter(None, active), None)


def untouched(view: str) -> tuple[Refresh, Method, int]:
    """Returns the refresh whose rows, columns and properties the view still has, its method, and the view's version.

    Raises RecomputeNeeded where there is none.
    """
    if not locations.is_stored(view):
        raise RecomputeNeeded("it is the first refresh")
    log = DeltaLog(locations.table_path(view))
    refresh = next(filter(None, map(of_commit, log.commits())), None)
    if refresh is None or refresh.method is None:
        raise RecomputeNeeded("its log does not say how it was made")
    version = refresh.commit.version
    first = version if refresh.method.based_on is None else refresh.method.based_on
    listed_versions = set(log.versions)
    for other in (number for number in range(first + 1, log.newest + 1) if number != version):
        actions = list(log.actions(other)) if other in listed_versions else []
        if not actions or other_change(actions) or appends_rows(actions):
            raise RecomputeNeeded(f"version {other} of it is no refresh")
    return refresh, refresh.method, log.newest


def verify(view: str) -> list[str]:
    """Returns notes on missing data. Raises LedgerMismatch if the view lacks rows that its refresh counted."""
    refresh = newest(view)
    if refresh is None:
        return [f"{view}: no refresh of it is in its log"]
    counts, version = refresh.tally, refresh.commit.version
    if counts["read"] != counts["kept"] + counts["dropped"]:
        raise LedgerMismatch(
            f"{view}: run '{refresh.run}' computed {counts['read']:,} rows, and accounts for others: {counts}"
        )
    stored = [file.rows for file in DeltaLog(locations.table_path(view)).state.live]
    if None in stored:
        return [f"{view}: its total was not compared with its refresh, as a file does not say its rows"]
    if (total := sum(filter(None, stored))) != counts["kept"]:
        raise LedgerMismatch(f"{view} holds {total:,} rows, and its refresh, version {version}, {counts['kept']:,}")
    return []
