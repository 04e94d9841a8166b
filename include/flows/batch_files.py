"""Finds the files of the source table that each batch of a Delta flow read, by version and index in its log."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from include.checkpoints.offset_ranges import delta_position
from include.delta.backlog import snapshot_files
from include.delta.delta_log import DeltaLog
from include.errors import FlowBroken
from include.flows.batches import BatchRecord
from include.spec import Delta


@dataclass(frozen=True)
class SourceFile:
    """A file that a batch read. rows is None where the commit has no statistics.

    index is the file's position within its version. Where is_of_snapshot is true, it is the position within the
    whole snapshot, ordered by file age.
    """

    version: int
    index: int
    path: str
    rows: int | None
    bytes: int
    is_of_snapshot: bool = False


class AppendedFiles:
    """The files that each version of a source table added. Methods raise FlowBroken where the log was cleaned."""

    def __init__(self, log: DeltaLog, source: Delta) -> None:
        self.log = log
        self.source = source

    def of(self, entry: BatchRecord) -> list[SourceFile]:
        """Returns the files of a batch in Delta's order. Raises FlowBroken, also where the flow reads a change feed."""
        if self.source.changes:
            raise FlowBroken(f"{entry.name} reads changes of {self.source.table}, whose rows its log does not count")
        return self.between(entry.source_from, entry.source_to)

    def between(self, begin: Any, end: Any) -> list[SourceFile]:
        """Returns the files between two Delta source offsets, in order. begin is None for the first batch of a flow."""
        if begin is None:
            return list(self._first_batch(end))
        version, index = delta_position(begin)
        files = (
            list(self._rest_of_snapshot(begin))
            if begin.get("isStartingVersion")
            else list(self._added_files(version, after=index))
        )
        if end.get("isStartingVersion"):
            return [file for file in files if (file.version, file.index) <= delta_position(end)]
        files += [file for later in range(version + 1, delta_position(end)[0] + 1) for file in self._added_files(later)]
        # An end offset with a negative index lies before the first file of its version.
        return [file for file in files if file.is_of_snapshot or (file.version, file.index) <= delta_position(end)]

    def _first_batch(self, end: Any) -> Iterator[SourceFile]:
        """Yields the files of a flow's first batch.

        The offset names the initial snapshot only as long as the flow has not read all of it.
        """
        version, index = delta_position(end)
        if end.get("isStartingVersion"):
            yield from (file for file in self._snapshot_files(version) if file.index <= index)
            return
        first_version = self.source.since_version
        earlier: Iterator[SourceFile]
        if first_version is not None:
            earlier = (file for later in range(first_version, version) for file in self._added_files(later))
        elif self.source.since is not None:
            raise FlowBroken(f"{self.source.table}: only the flow knows which version was the first since a moment")
        else:
            # The initial snapshot and the appends after it add up to the rows of the previous version.
            earlier = iter(self._snapshot_files(version - 1) if version else ())
        yield from earlier
        yield from (file for file in self._added_files(version) if file.index <= index)

    def left_of(self, end: Any) -> list[SourceFile]:
        """Returns the files after an offset that belong to the same version, or to the same initial snapshot."""
        version, index = delta_position(end)
        return list(
            self._rest_of_snapshot(end) if end.get("isStartingVersion") else self._added_files(version, after=index)
        )

    def _rest_of_snapshot(self, begin: Any) -> Iterator[SourceFile]:
        version, index = delta_position(begin)
        yield from (file for file in self._snapshot_files(version) if file.index > index)

    def _snapshot_files(self, version: int) -> list[SourceFile]:
        indexed_files = enumerate(snapshot_files(self.log, version))
        return [SourceFile(version, index, file.path, file.rows, file.bytes, True) for index, file in indexed_files]

    def _added_files(self, version: int, after: int = -1) -> Iterator[SourceFile]:
        """Yields the data files that a version added, except those with dataChange=false, as OPTIMIZE writes them."""
        if version > self.log.newest:
            return
        if version not in self._listed_versions:
            raise FlowBroken(f"{self.source.table}: version {version} is gone from its log: what it added is unknown")
        add_actions = (action["add"] for action in self.log.actions(version, b'"add"') if "add" in action)
        for index, add in enumerate(add for add in add_actions if add.get("dataChange", True)):
            if index > after:
                rows = json.loads(add.get("stats") or "{}").get("numRecords")
                yield SourceFile(version, index, unquote(add["path"]), rows, add["size"])

    @cached_property
    def _listed_versions(self) -> set[int]:
        return set(self.log.versions)
