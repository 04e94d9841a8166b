"""Finds the version of a table that a view reads by its declaration, whatever was committed later."""

from bisect import bisect_right
from datetime import UTC, datetime

from include.errors import FlowBroken, Unreachable
from include.lake import listing
from include.project.sources import parse_time
from include.readers.delta_log import DeltaLog
from include.settings import settings
from include.spec import Delta


class VersionToCome(Unreachable):
    """The table has not reached the declared version or moment yet."""


def version_of(view: str, source: Delta, log: DeltaLog | None = None) -> int:
    """Returns the version that a pinned source declares: of a moment, the newest one that was committed by then.

    log: of the table. Raises VersionToCome, FlowBroken for a version that the log does not reach any more, and
    Unreachable.
    """
    log = log or DeltaLog(settings().table_path(source.table))
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
        index = bisect_right(log.versions, moment.timestamp(), key=lambda number: log.commit(number).timestamp) - 1
        version, is_gone = log.versions[max(index, 0)], index < 0
    if is_gone:
        asked = f"at version {version}" if source.timestamp_as_of is None else f"as of {source.timestamp_as_of}"
        raise FlowBroken(
            f"{reads} {asked}, and its log begins with version {oldest} of {_time_of(log, oldest)}: name a later one"
        )
    return version


def require_files(view: str, source: Delta, version: int) -> None:
    """Raises FlowBroken if data files of this version are gone."""
    log = DeltaLog(settings().table_path(source.table))
    files = log.state_at(version).live
    if missing := len(listing.missing(log.table, [file.path for file in files])):
        raise FlowBroken(
            f"{view} reads {source.table} at version {version}, and {missing:,} of its {len(files):,} files were "
            f"deleted before the view declared it: name a later version"
        )


def _time_of(log: DeltaLog, version: int) -> str:
    return datetime.fromtimestamp(log.commit(version).timestamp, UTC).isoformat(timespec="milliseconds")
