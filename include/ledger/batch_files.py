"""Which files of its source table each batch of a Delta flow read, by version and index: from that table's log."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from include.errors import Broken
from include.readers.batches import BatchRecord
from include.readers.delta_backlog import snapshot
from include.readers.delta_log import Log
from include.readers.offset_ranges import place
from include.spec import Delta


@dataclass(frozen=True)
class Read:
    """A file that a batch read. rows, None where its commit does not say.

    is_of_snapshot: its index counts the files of the version in the order of their age, not those the version added.
    """

    version: int
    index: int
    path: str
    rows: int | None
    bytes: int
    is_of_snapshot: bool = False


class Appends:
    """What a source table brought, version by version. Raises Broken where its log no longer goes back that far."""

    def __init__(self, log: Log, source: Delta) -> None:
        self.log = log
        self.source = source

    def of(self, entry: BatchRecord) -> list[Read]:
        """The files of a batch, in the order in which Delta hands them out. Raises Broken, also for a change feed."""
        if self.source.changes:
            raise Broken(f"{entry.name} reads changes of {self.source.table}, whose rows its log does not count")
        return self.between(entry.source_from, entry.source_to)

    def between(self, begin: Any, end: Any) -> list[Read]:
        """The files between two offsets of a stream, in their order; begin: None where it had not begun."""
        if begin is None:
            return list(self._first(end))
        version, index = place(begin)
        found = list(self._rest(begin)) if begin.get("isStartingVersion") else list(self._of(version, after=index))
        if end.get("isStartingVersion"):
            return [one for one in found if (one.version, one.index) <= place(end)]
        found += [one for later in range(version + 1, place(end)[0] + 1) for one in self._of(later)]
        # A negative index stands before the first file.
        return [one for one in found if one.is_of_snapshot or (one.version, one.index) <= place(end)]

    def _first(self, end: Any) -> Iterator[Read]:
        """Of the batch a flow begins with. Which snapshot that was is only told while it is not read to its end."""
        version, index = place(end)
        if end.get("isStartingVersion"):
            yield from (one for one in self._snapshot(version) if one.index <= index)
            return
        since = self.source.since_version
        earlier: Iterator[Read]
        if since is not None:
            earlier = (one for version_ in range(since, version) for one in self._of(version_))
        elif self.source.since is not None:
            raise Broken(f"{self.source.table}: only the flow knows which version was the first since a moment")
        else:
            # Whatever its snapshot was: with what was appended after it, those are the rows of the version before.
            earlier = iter(self._snapshot(version - 1) if version else ())
        yield from earlier
        yield from (one for one in self._of(version) if one.index <= index)

    def left_of(self, end: Any) -> list[Read]:
        """The files of the version in which an offset lies, or of the snapshot, that come behind it."""
        version, index = place(end)
        return list(self._rest(end) if end.get("isStartingVersion") else self._of(version, after=index))

    def _rest(self, begin: Any) -> Iterator[Read]:
        version, index = place(begin)
        yield from (one for one in self._snapshot(version) if one.index > index)

    def _snapshot(self, version: int) -> list[Read]:
        files = enumerate(snapshot(self.log, version))
        return [Read(version, index, one.path, one.rows, one.bytes, True) for index, one in files]

    def _of(self, version: int, after: int = -1) -> Iterator[Read]:
        """The files a version added; what only moved rows, an OPTIMIZE say, hands out none."""
        if version > self.log.newest:
            return
        if version not in self._present:
            raise Broken(f"{self.source.table}: version {version} is gone from its log: what it brought is not told")
        added = (one["add"] for one in self.log.actions(version, b'"add"') if "add" in one)
        for index, add in enumerate(one for one in added if one.get("dataChange", True)):
            if index > after:
                rows = json.loads(add.get("stats") or "{}").get("numRecords")
                yield Read(version, index, unquote(add["path"]), rows, add["size"])

    @cached_property
    def _present(self) -> set[int]:
        return set(self.log.versions)
