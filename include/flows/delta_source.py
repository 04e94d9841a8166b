"""A Delta table as the source of a flow."""

import math
from itertools import takewhile
from typing import Any

from include.checkpoints.checkpoint_files import Position
from include.delta import commit_history
from include.delta.backlog import StreamSource
from include.delta.delta_log import Commit, DeltaLog
from include.flows.batches import BACKFILL
from include.flows.source import FlowSource, StartPosition, commit_of
from include.lake import locations
from include.spec import Delta, Table


class DeltaSource(FlowSource):
    def __init__(self, flow: Table) -> None:
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
