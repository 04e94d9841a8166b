"""Finds where a flow that reads a Delta table begins, from that table's log, without a JVM."""

from bisect import bisect_left
from datetime import UTC, datetime

from include.errors import FlowBroken, Unreachable
from include.project.sources import CHANGE_FEED_PROPERTY, parse_time
from include.readers import stored_table
from include.readers.delta_log import DeltaLog
from include.settings import settings
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
    log = DeltaLog(settings().table_path(source.table))
    oldest, first = log.versions[0], source.since_version
    if first is not None and first > log.newest:
        raise Unreachable(
            f"{flow} begins with version {first} of {source.table}, which has come to {log.newest}: wait, or lower "
            f"since_version"
        )
    if first is None:
        assert source.since
        first = _version_at(flow, source.table, log, source.since)
    is_cleaned = oldest > 0 and (first < oldest or (source.since is not None and first == oldest))
    if is_cleaned:
        raise FlowBroken(
            f"{flow} begins with {f'version {first}' if source.since is None else source.since} of {source.table}, "
            f"whose log begins with version {oldest} of {_commit_time(log, oldest)}: begin later, or with all that "
            f"it holds",
            "BEGINNING_GONE",
        )
    return first


def _version_at(flow: str, table: str, log: DeltaLog, since: str) -> int:
    """Returns the first version that was committed at this time or later."""
    since_time = parse_time(since)
    assert since_time, "the catalog has checked it"
    index = bisect_left(log.versions, since_time.timestamp(), key=lambda version: log.commit(version).timestamp)
    if index == len(log.versions):
        raise Unreachable(
            f"{flow} begins with what {table} holds since {since}, and nothing was committed there since: wait"
        )
    return log.versions[index]


def _commit_time(log: DeltaLog, version: int) -> str:
    return datetime.fromtimestamp(log.commit(version).timestamp, UTC).isoformat(timespec="seconds")
