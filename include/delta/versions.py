"""Finds the version where a flow begins to read a table, and the one that a view reads, without a JVM."""

from datetime import UTC, datetime

from include.delta import stored_table
from include.delta.delta_log import DeltaLog
from include.errors import FlowBroken, Unreachable
from include.lake import directories, locations
from include.project.sources import CHANGE_FEED_PROPERTY, parse_time
from include.spec import Delta


def require_change_feed(flow: str, source: Delta) -> None:
    """Raises Unreachable where the source has no change data feed yet. The source's own flow enables it."""
    properties = stored_table.open_table(source.table).metadata().configuration
    if properties.get(CHANGE_FEED_PROPERTY) != "true":
        raise Unreachable(
            f"{flow} reads the changes of {source.table}, which does not keep them yet: restart the flow {source.table}"
        )


def first_version(flow: str, source: Delta) -> int | None:
    """Returns the version that a new flow begins with; None for a full snapshot of its source.

    Raises Unreachable where the source has no such version yet, and FlowBroken where its log was cleaned.
    """
    if source.since_version is None and source.since is None:
        return None
    log = DeltaLog(locations.table_path(source.table))
    oldest, first = log.versions[0], source.since_version
    if first is not None and first > log.newest:
        raise Unreachable(
            f"{flow} begins with version {first} of {source.table}, which has come to {log.newest}: wait, or lower "
            f"since_version"
        )
    if first is None:
        assert source.since
        first = _first_since(flow, source.table, log, source.since)
    is_cleaned = oldest > 0 and (first < oldest or (source.since is not None and first == oldest))
    if is_cleaned:
        raise FlowBroken(
            f"{flow} begins with {f'version {first}' if source.since is None else source.since} of {source.table}, "
            f"whose log begins with version {oldest} of {_commit_time(log, oldest)}: begin later, or with all that "
            f"it holds",
            "BEGINNING_GONE",
        )
    return first


def _first_since(flow: str, table: str, log: DeltaLog, since: str) -> int:
    """Returns the first version that was committed at this time or later."""
    since_time = parse_time(since)
    assert since_time, "the catalog has checked it"
    index = log.committed_by(since_time.timestamp(), is_before=True)
    if index == len(log.versions):
        raise Unreachable(
            f"{flow} begins with what {table} holds since {since}, and nothing was committed there since: wait"
        )
    return log.versions[index]


def _commit_time(log: DeltaLog, version: int) -> str:
    return datetime.fromtimestamp(log.commit(version).timestamp, UTC).isoformat(timespec="seconds")


class VersionToCome(Unreachable):
    """The table has not reached the declared version or moment yet."""


def version_of(view: str, source: Delta, log: DeltaLog | None = None) -> int:
    """Returns the version that a pinned source declares: of a moment, the newest one that was committed by then.

    log: of the table. Raises VersionToCome, FlowBroken for a version that the log does not reach any more, and
    Unreachable.
    """
    log = log or DeltaLog(locations.table_path(source.table))
    reads, oldest = f"{view} reads {source.table}", log.versions[0]
    if source.timestamp_as_of is None:
        version = source.version_as_of
        assert version is not None, "the source is pinned"
        if version > log.newest:
            raise VersionToCome(
                f"{reads} at version {version}, and its newest version is {log.newest}: lower version_as_of"
            )
        is_gone = version < oldest
    else:
        moment = parse_time(source.timestamp_as_of)
        assert moment, "the catalog has checked it"
        if moment.timestamp() > log.commit(log.newest).timestamp:
            raise VersionToCome(
                f"{reads} as of {source.timestamp_as_of}, and its newest version, {log.newest}, is of "
                f"{_time_of(log, log.newest)}: name that moment or an earlier one, or read it without timestamp_as_of"
            )
        found = log.version_at(moment.timestamp())
        version, is_gone = oldest if found is None else found, found is None
    if is_gone:
        asked = f"at version {version}" if source.timestamp_as_of is None else f"as of {source.timestamp_as_of}"
        raise FlowBroken(
            f"{reads} {asked}, and its log begins with version {oldest} of {_time_of(log, oldest)}: name a later one"
        )
    return version


def require_files(view: str, source: Delta, version: int) -> None:
    """Raises FlowBroken if data files of this version are gone."""
    log = DeltaLog(locations.table_path(source.table))
    files = log.state_at(version).live
    if missing := len(directories.missing(log.table, [file.path for file in files])):
        raise FlowBroken(
            f"{view} reads {source.table} at version {version}, and {missing:,} of its {len(files):,} files were "
            f"deleted before the view declared it: name a later version"
        )


def _time_of(log: DeltaLog, version: int) -> str:
    return datetime.fromtimestamp(log.commit(version).timestamp, UTC).isoformat(timespec="milliseconds")
