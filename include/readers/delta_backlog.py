"""What a Delta table holds behind a position of a stream that reads it: from its log, never from older commits."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from include.errors import Broken
from include.readers import checkpoint
from include.readers.delta_log import LiveFile, Log

# A flow that is further behind is told by this many, and that it is more: reading on would take seconds.
MOST_COMMITS = 1_000
# What an OPTIMIZE adds and removes changes nothing, and a stream passes over it.
CHANGES_DATA = b'"dataChange":true'


@dataclass(frozen=True)
class Volume:
    """Data files, their bytes and rows. rows: None where a file does not say. oldest_at: the moment, in seconds, of
    the oldest commit that brought one; None without one. is_more: whether there is more, not looked at.
    """

    files: int = 0
    bytes: int = 0
    rows: int | None = 0
    oldest_at: float | None = None
    is_more: bool = False

    def __add__(self, later: "Volume") -> "Volume":
        return Volume(
            self.files + later.files,
            self.bytes + later.bytes,
            None if self.rows is None or later.rows is None else self.rows + later.rows,
            later.oldest_at if self.oldest_at is None else self.oldest_at,
            self.is_more or later.is_more,
        )


class Feed:
    """A table as a stream of its appends sees it, or of its change feed; each commit is read once."""

    def __init__(self, log: Log, changes: bool) -> None:
        self.log, self._changes = log, changes
        self._brought: dict[int, Volume] = {}

    def all(self) -> Volume:
        """All that the table holds now."""
        live = self.log.state.live
        oldest_at = min((file.modified_at for file in live), default=None)
        return Volume(len(live), sum(file.bytes for file in live), _sum(file.rows for file in live), oldest_at)

    def behind(self, offset: dict[str, Any]) -> Volume:
        """What a stream has not read that has come to `offset`.

        Raises Broken where the log lacks a commit that it needs, or ends before the offset.
        """
        version, index = int(offset["reservoirVersion"]), int(offset["index"])
        if checkpoint.read_version(offset) > self.log.newest:
            raise Broken(
                f"{self.log.table} ends at version {self.log.newest}, before {version}, where its reader stands: it "
                f"was restored or created anew, rebuild the reader"
            )
        if offset.get("isStartingVersion"):
            return _rest_of_snapshot(self.log, version, index) + self.since(version + 1)
        return self.since(version, index)

    def left_of(self, offset: dict[str, Any]) -> int:
        """How many files of the version in which it lies, or of the snapshot, come behind it."""
        version, index = int(offset["reservoirVersion"]), int(offset["index"])
        if offset.get("isStartingVersion"):
            return _rest_of_snapshot(self.log, version, index).files
        return self._volume(version, max(0, index + 1)).files if version <= self.log.newest else 0

    def brings(self, version: int) -> bool:
        """Whether a stream gets anything of this version."""
        return self._volume(version, 0).files > 0

    def since(self, version: int, index: int = -1) -> Volume:
        """What came with this version behind its file `index`, and with later ones. Raises Broken as `behind`."""
        later = self.log.after(version - 1)
        if version <= self.log.newest and later != list(range(version, self.log.newest + 1)):
            raise Broken(
                f"the log of {self.log.table} lacks commits from version {version} on that its reader has yet to "
                f"read: restore it from its backup, or rebuild the reader"
            )
        volumes = [self._volume(one, index + 1 if one == version else 0) for one in later[:MOST_COMMITS]]
        # The date of a commit is read for the one that counts only, as that is what takes the time.
        oldest = next((one for one, volume in zip(later, volumes, strict=False) if volume.files), None)
        return Volume(
            sum(one.files for one in volumes),
            sum(one.bytes for one in volumes),
            _sum(one.rows for one in volumes),
            None if oldest is None else self.log.commit(oldest).timestamp,
            is_more=len(later) > MOST_COMMITS,
        )

    def _volume(self, version: int, first: int) -> Volume:
        """What one version brought, from its file `first` on."""
        if first > 0:
            return _total(self._files(version)[first:])
        if version not in self._brought:
            self._brought[version] = _total(self._files(version))
        return self._brought[version]

    def _files(self, version: int) -> list[dict[str, Any]]:
        """In their order; of a change feed those of its own, or where a version has none, those of the table."""
        kinds = (b'"cdc"', CHANGES_DATA) if self._changes else (CHANGES_DATA,)
        for kind in kinds:
            actions = self.log.actions(version, kind)
            names = ("cdc",) if kind != CHANGES_DATA else ("add", "remove") if self._changes else ("add",)
            if files := [action[name] for action in actions for name in names if name in action]:
                return files
        return []


def _total(files: list[dict[str, Any]]) -> Volume:
    return Volume(len(files), sum(file.get("size") or 0 for file in files), _sum(map(_rows, files)))


def snapshot(log: Log, version: int) -> list[LiveFile]:
    """The files of a version in the order in which a stream that begins reads them: oldest first, then by name."""
    return sorted(log.state_at(version).live, key=lambda file: (file.modified_at, file.path))


def _rest_of_snapshot(log: Log, version: int, index: int) -> Volume:
    if version not in log.versions:
        raise Broken(
            f"the log of {log.table} no longer holds version {version}, of which its reader has yet to read "
            f"files: rebuild the reader"
        )
    rest = snapshot(log, version)[index + 1 :]
    oldest_at = rest[0].modified_at if rest else None
    return Volume(len(rest), sum(file.bytes for file in rest), _sum(file.rows for file in rest), oldest_at)


def _rows(file: dict[str, Any]) -> int | None:
    statistics = json.loads(file.get("stats") or "{}")
    return statistics.get("numRecords")  # type: ignore[no-any-return]


def _sum(counts: Iterable[int | None]) -> int | None:
    """None where one of them is unknown."""
    known = list(counts)
    return None if None in known else sum(one for one in known if one is not None)
