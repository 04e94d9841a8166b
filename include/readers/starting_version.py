"""Where a flow that reads a Delta table begins, found in that table's log without a JVM."""

from bisect import bisect_left
from datetime import UTC, datetime

from deltalake import DeltaTable

from include.errors import Broken, Unreachable
from include.readers.delta_log import Log
from include.settings import settings
from include.spec import Delta
from include.validation.delta_sources import FEED, moment


def require_feed(flow: str, source: Delta) -> None:
    """Raises Unreachable where the source does not keep its changes yet: its own flow switches that on."""
    properties = DeltaTable(str(settings().table_path(source.table))).metadata().configuration
    if properties.get(FEED) != "true":
        raise Unreachable(
            f"{flow} reads the changes of {source.table}, which does not keep them yet: restart the flow {source.table}"
        )


def first_version(flow: str, source: Delta) -> int | None:
    """The version a new flow begins with; None for all that its source holds.

    Raises Unreachable where the source has not come that far, and Broken where its log no longer goes back that far.
    """
    if source.since_version is None and source.since is None:
        return None
    log = Log(settings().table_path(source.table))
    oldest, asked = log.versions[0], source.since_version
    if asked is not None and asked > log.newest:
        raise Unreachable(
            f"{flow} begins with version {asked} of {source.table}, which has come to {log.newest}: wait, or lower "
            f"since_version"
        )
    if asked is None:
        assert source.since
        asked = _version_at(flow, source.table, log, source.since)
    is_cut = oldest > 0 and (asked < oldest or (source.since is not None and asked == oldest))
    if is_cut:
        raise Broken(
            f"{flow} begins with {f'version {asked}' if source.since is None else source.since} of {source.table}, "
            f"whose log begins with version {oldest} of {_said(log, oldest)}: begin later, or with all that it holds",
            "BEGINNING_GONE",
        )
    return asked


def _version_at(flow: str, table: str, log: Log, since: str) -> int:
    """The first version that was committed at that moment or later."""
    wanted = moment(since)
    assert wanted, "the catalog has checked it"
    place = bisect_left(log.versions, wanted.timestamp(), key=lambda version: log.commit(version).timestamp)
    if place == len(log.versions):
        raise Unreachable(
            f"{flow} begins with what {table} holds since {since}, and nothing was committed there since: wait"
        )
    return log.versions[place]


def _said(log: Log, version: int) -> str:
    return datetime.fromtimestamp(log.commit(version).timestamp, UTC).isoformat(timespec="seconds")
