"""What a batch reads, by its offsets: known before any row is read."""

from dataclasses import dataclass
from typing import Any

from include.checkpoints import checkpoint_files, offset_ranges
from include.checkpoints.offset_ranges import OffsetRange
from include.delta.delta_log import DeltaLog
from include.engine.fast_path.transaction import Refusal
from include.errors import FlowBroken
from include.flows.batch_files import AppendedFiles, SourceFile
from include.lake import locations
from include.spec import Delta, Flow

# A batch that reads more commits is not small.
MOST_VERSIONS = 200


@dataclass(frozen=True)
class PlannedRead:
    """rows: an upper bound. files: those of a stored source that hold the rows. bytes: their total size on disk.
    ranges: offset ranges of topics.
    """

    rows: int
    bytes: int = 0
    files: tuple[SourceFile, ...] = ()
    ranges: tuple[OffsetRange, ...] = ()


class Source:
    """The source of one flow."""

    def __init__(self, table: Flow) -> None:
        self._table, self._source = table, table.source

    def between(self, begin: Any, end: Any) -> PlannedRead | Refusal:
        """Returns what lies between two offsets of the stream. Refuses what takes reading the rows."""
        if not self._source.reads_table:
            ranges = tuple(offset_ranges.kafka_ranges(begin, end))
            return PlannedRead(sum(range_.count for range_ in ranges), ranges=ranges)
        if self._source.changes:
            return Refusal("it reads changes, which no commit counts")
        if begin is not None and offset_ranges.delta_position(begin) == offset_ranges.delta_position(end):
            return PlannedRead(0)
        try:
            log = self._log(begin, end)
            if log is None:
                return Refusal("it gathers many commits of its source")
            files = tuple(AppendedFiles(log, self._table.source_as(Delta)).between(begin, end))
        except FlowBroken as error:
            return Refusal(str(error))
        if any(file.rows is None for file in files):
            return Refusal(f"files of {self._source.table} have no statistics")
        return PlannedRead(sum(file.rows or 0 for file in files), sum(file.bytes for file in files), files)

    def _log(self, begin: Any, end: Any) -> DeltaLog | None:
        """Returns the part of the source's log that the batch reads; None if that is long."""
        path = locations.table_path(self._source.table)
        if begin is None or begin.get("isStartingVersion") or end.get("isStartingVersion"):
            return DeltaLog(path)
        # An offset after the last file of a version belongs to the next version, which may not exist yet.
        first, last = offset_ranges.delta_position(begin)[0], checkpoint_files.read_version(end)
        return None if last - first > MOST_VERSIONS else DeltaLog(path, range(first, last + 1))
