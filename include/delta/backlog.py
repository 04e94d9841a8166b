"""Measures what a Delta table holds after a stream's offset, from the table's log alone."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from include.checkpoints import checkpoint_files
from include.delta.delta_log import DeltaLog, LiveFile
from include.errors import FlowBroken

# The size of a longer backlog is not known exactly: reading more commits would take seconds.
MOST_COMMITS = 1_000
# Streams skip files with dataChange=false, as OPTIMIZE writes them.
CHANGES_DATA = b'"dataChange":true'


@dataclass(frozen=True)
class Backlog:
    """A number of data files, with their bytes and rows. rows: None where a file has no statistics.

    oldest_at: when the oldest commit that added one was made, in seconds since 1970; None without a file.
    is_more: whether there are further commits, which were not read.
    """

    files: int = 0
    bytes: int = 0
    rows: int | None = 0
    oldest_at: float | None = None
    is_more: bool = False

    def __add__(self, later: "Backlog") -> "Backlog":
        return Backlog(
            self.files + later.files,
            self.bytes + later.bytes,
            None if self.rows is None or later.rows is None else self.rows + later.rows,
            later.oldest_at if self.oldest_at is None else self.oldest_at,
            self.is_more or later.is_more,
        )


class StreamSource:
    """A table as a stream of its appends, or of its change feed, reads it. Each commit is read once."""

    def __init__(self, log: DeltaLog, changes: bool) -> None:
        self.log, self._changes = log, changes
        self._volumes: dict[int, Backlog] = {}

    def all(self) -> Backlog:
        """Returns the volume of the table's newest version."""
        live = self.log.state.live
        oldest_at = min((file.modified_at for file in live), default=None)
        return Backlog(len(live), sum(file.bytes for file in live), _sum(file.rows for file in live), oldest_at)

    def behind(self, offset: dict[str, Any]) -> Backlog:
        """Returns the volume that a stream at this offset has not read.

        Raises FlowBroken where the log lacks a commit that the stream needs, or ends before the offset.
        """
        version, index = int(offset["reservoirVersion"]), int(offset["index"])
        if checkpoint_files.read_version(offset) > self.log.newest:
            raise FlowBroken(
                f"{self.log.table} ends at version {self.log.newest}, before {version}, where its reader stands: it "
                f"was restored or recreated, rebuild the reader"
            )
        if offset.get("isStartingVersion"):
            return _rest_of_snapshot(self.log, version, index) + self.since(version + 1)
        return self.since(version, index)

    def left_of(self, offset: dict[str, Any]) -> int:
        """Returns how many files follow the offset in its version, or in the initial snapshot."""
        version, index = int(offset["reservoirVersion"]), int(offset["index"])
        if offset.get("isStartingVersion"):
            return _rest_of_snapshot(self.log, version, index).files
        return self._volume(version, max(0, index + 1)).files if version <= self.log.newest else 0

    def brings(self, version: int) -> bool:
        """Returns whether a stream receives files of this version."""
        return self._volume(version, 0).files > 0

    def since(self, version: int, index: int = -1) -> Backlog:
        """Returns the backlog after file `index` of this version. Raises FlowBroken as `behind`."""
        later_versions = self.log.after(version - 1)
        if version <= self.log.newest and later_versions != list(range(version, self.log.newest + 1)):
            raise FlowBroken(
                f"the log of {self.log.table} lacks commits from version {version} on that its reader has yet to "
                f"read: restore it from its backup, or rebuild the reader"
            )
        volumes = [
            self._volume(later_version, index + 1 if later_version == version else 0)
            for later_version in later_versions[:MOST_COMMITS]
        ]
        # Reading commit timestamps is slow, so only the one that counts is read.
        oldest_version = next(
            (later_version for later_version, volume in zip(later_versions, volumes, strict=False) if volume.files),
            None,
        )
        return Backlog(
            sum(volume.files for volume in volumes),
            sum(volume.bytes for volume in volumes),
            _sum(volume.rows for volume in volumes),
            None if oldest_version is None else self.log.commit(oldest_version).timestamp,
            is_more=len(later_versions) > MOST_COMMITS,
        )

    def _volume(self, version: int, first: int) -> Backlog:
        """Returns the volume of one version, from its file `first` on."""
        if first > 0:
            return _total(self._files(version)[first:])
        if version not in self._volumes:
            self._volumes[version] = _total(self._files(version))
        return self._volumes[version]

    def _files(self, version: int) -> list[dict[str, Any]]:
        """Returns the file actions of a version, in order.

        A change feed consists of the version's cdc files or, where it has none, of its data files.
        """
        kinds = (b'"cdc"', CHANGES_DATA) if self._changes else (CHANGES_DATA,)
        for kind in kinds:
            actions = self.log.actions(version, kind)
            names = ("cdc",) if kind != CHANGES_DATA else ("add", "remove") if self._changes else ("add",)
            if files := [action[name] for action in actions for name in names if name in action]:
                return files
        return []


def _total(files: list[dict[str, Any]]) -> Backlog:
    return Backlog(len(files), sum(file.get("size") or 0 for file in files), _sum(map(_rows, files)))


def snapshot_files(log: DeltaLog, version: int) -> list[LiveFile]:
    """Returns the files of a version in the order in which Delta's source reads a snapshot: by age, then by name."""
    return sorted(log.state_at(version).live, key=lambda file: (file.modified_at, file.path))


def _rest_of_snapshot(log: DeltaLog, version: int, index: int) -> Backlog:
    if version not in log.versions:
        raise FlowBroken(
            f"the log of {log.table} no longer holds version {version}, of which its reader has yet to read "
            f"files: rebuild the reader"
        )
    rest = snapshot_files(log, version)[index + 1 :]
    oldest_at = rest[0].modified_at if rest else None
    return Backlog(len(rest), sum(file.bytes for file in rest), _sum(file.rows for file in rest), oldest_at)


def _rows(file: dict[str, Any]) -> int | None:
    statistics = json.loads(file.get("stats") or "{}")
    return statistics.get("numRecords")  # type: ignore[no-any-return]


def _sum(counts: Iterable[int | None]) -> int | None:
    """Returns the sum, or None where a count is None."""
    listed = list(counts)
    return None if None in listed else sum(count for count in listed if count is not None)
