"""A Delta table as the source of a flow."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

from include.checkpoints import checkpoint_files, offset_ranges
from include.checkpoints.checkpoint_files import Position
from include.delta import commit_history, versions
from include.delta.backlog import Backlog, StreamSource
from include.delta.delta_log import Commit, DeltaLog
from include.errors import FlowBroken
from include.flows.batch_files import AppendedFiles
from include.flows.batches import BACKFILL, BatchRecord
from include.flows.lag import Lag, Movement, SourceSnapshot
from include.flows.source import FlowSource, ReadData, StartPosition, commit_of
from include.lake import directories, locations
from include.spec import Delta, Flow


class DeltaSource(FlowSource):
    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self._source = flow.source_as(Delta)

    def identity(self) -> dict[str, Any]:
        # A checkpoint of appends cannot continue as one of the change feed.
        return {"table": self._source.table} | ({"changes": True} if self._source.changes else {})

    def _after(self, metadata: dict[str, Any]) -> StartPosition:
        return StartPosition(skip_replacements(metadata["source_to"], self._source), commit_of(metadata))

    def end(self) -> dict[str, Any]:
        """Returns the newest version."""
        if not locations.is_stored(self._source.table):
            return {}
        return {"version": DeltaLog(locations.table_path(self._source.table)).newest}

    def _has_passed(self, flow_position: Position, end: dict[str, Any]) -> bool:
        return has_passed(flow_position.offset, end["version"])

    def lag(self, lag: Lag, flow_position: Position | None, sources: SourceSnapshot) -> Lag:
        feed = sources.feed(self._source)
        newest = feed.log.newest
        if flow_position is not None and flow_position.offset is not None:
            count = newest - checkpoint_files.read_version(flow_position.offset)
            volume = feed.behind(flow_position.offset)
        elif (first := versions.first_version(lag.flow, self._source)) is not None:
            count, volume = newest - first + 1, feed.since(first)
        else:
            count, volume = newest + 1, feed.all()
        return replace(
            lag,
            count=count,
            versions=count,
            files=volume.files,
            bytes=volume.bytes,
            rows=volume.rows,
            seconds=sources.age(volume.oldest_at),
            is_more=volume.is_more,
        )

    def movement(self, lag: Lag, metadata: dict[str, Any], sources: SourceSnapshot) -> Movement | None:
        feed = sources.feed(self._source)
        earlier_backlog = feed.behind(metadata["source_to"])
        later_versions = feed.log.versions[feed.log.committed_by(sources.since) :]
        arrived = feed.since(later_versions[0]) if later_versions else Backlog()
        if earlier_backlog.is_more or arrived.is_more or lag.is_more:
            return None
        # The earlier backlog extends to the newest version, so it includes what has arrived since.
        if earlier_backlog.rows is not None and arrived.rows is not None and lag.rows is not None:
            return Movement("rows", arrived.rows, earlier_backlog.rows - lag.rows, lag.rows)
        return Movement("files", arrived.files, earlier_backlog.files - (lag.files or 0), lag.files or 0)

    def read_by(self, batches: Sequence[BatchRecord]) -> ReadData:
        appended = AppendedFiles(DeltaLog(locations.table_path(self._source.table)), self._source)
        try:
            return ReadData(appended=[file for batch in batches for file in appended.of(batch)])
        except FlowBroken as error:
            return ReadData(note=str(error))

    def datasets(self, offset: Any) -> list[str]:
        return [str(locations.table_path(self._source.table))]

    def obstacles(self, metadata: dict[str, Any] | None, newest: dict[str, Any] | None) -> Iterator[str]:
        if metadata is None:
            return
        try:
            yield from self._replaced_or_deleted(metadata["source_to"])
        except FlowBroken as error:
            yield f"{self._flow.flow}: {error}"

    def _replaced_or_deleted(self, offset: dict[str, Any]) -> Iterator[str]:
        flow, table = self._flow.flow, self._source.table
        log = DeltaLog(locations.table_path(table))
        version = offset_ranges.delta_position(offset)[0]
        first = version + bool(offset.get("isStartingVersion"))
        if log.versions[0] > max(first - 1, 0):
            yield f"{flow}: the log of {table} begins with version {log.versions[0]}, and {first} is to be read"
            return
        paths = {file.path for file in log.state_at(max(first - 1, 0)).live}
        for later in log.after(first - 1):
            commit, actions = log.commit(later), list(log.actions(later))
            removes_data = any(action.get("remove", {}).get("dataChange") for action in actions)
            is_restored = commit_history.REWIND in commit.metadata or commit.operation == "RESTORE"
            if is_restored or (removes_data and not self._source.changes):
                yield (
                    f"{flow}: version {later} ({commit.operation}) of {table} has replaced what would be read again: "
                    f"rewind {table} as well, or make the rows again by a backfill of {self._flow.name}"
                )
                return
            paths |= {unquote(action[kind]["path"]) for action in actions for kind in ("add", "cdc") if kind in action}
        if deleted := next(iter(deleted_files(log, paths)), None):
            yield f"{flow}: files of {table} that would be read again are deleted, {deleted} say"


def has_passed(offset: dict[str, Any], version: int) -> bool:
    """Returns whether a Delta offset lies behind all files of a version."""
    if offset.get("isStartingVersion"):
        # An offset within the first snapshot of a table bears the snapshot's version from its first file on.
        return False
    return int(offset["reservoirVersion"]) > version


def skip_replacements(offset: dict[str, Any], source: Delta, before: float = math.inf) -> dict[str, Any]:
    """Returns the offset after the next source commits that replaced rows which the stream has read.

    These are backfills, at which a stream of appends fails, and rewinds to the stream's position. No rows are left out:
    the reader's range is backfilled too or marked STALE, and a rewind takes the reader back as well.
    before: a version. Commits from this version on do not count.
    """
    log = DeltaLog(locations.table_path(source.table))
    feed, resume_offset = StreamSource(log, source.changes), offset
    version = int(offset["reservoirVersion"])
    has_begun = offset.get("isStartingVersion") or int(offset["index"]) >= 0
    if has_begun and feed.left_of(offset):
        return offset
    read = version if has_begun else version - 1
    commits_ahead = takewhile(lambda entry: entry[0].version > read, commit_history.commits_with_activity(log))
    for commit in reversed([commit for commit, is_active in commits_ahead if is_active and commit.version < before]):
        if _replaces(commit, log, feed, read, source):
            resume_offset = {**offset, "reservoirVersion": commit.version + 1, "index": -1, "isStartingVersion": False}
        elif feed.brings(commit.version):
            break
    return resume_offset


def _replaces(commit: Commit, log: DeltaLog, feed: StreamSource, read: int, source: Delta) -> bool:
    """Returns whether a stream must skip this commit. read: the newest version that the stream has read."""
    if BACKFILL in commit.metadata:
        return not source.changes
    if commit_history.REWIND not in commit.metadata:
        return False
    restored = commit_history.restored_to(log, commit)
    assert restored is not None
    # A stream that has read undone versions, and was not rewound with the source, must fail here.
    return not any(feed.brings(version) for version in range(restored + 1, read + 1))


def deleted_files(log: DeltaLog, paths: set[str]) -> list[str]:
    """Returns the data files that were deleted. Live files are assumed to exist."""
    not_live = paths - {file.path for file in log.state.live}
    return sorted(directories.missing(log.table, not_live))
