"""Reads a Delta table's log without a JVM: live files, tombstones and commits.

A commit that lost its metadata gets it back: its transaction says which batch made it, the checkpoint has the offsets.
"""

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as parquet

from include.checkpoints import checkpoint_files
from include.errors import FlowBroken, Unreachable
from include.lake import clients, locations
from include.lake.paths import LakePath, names
from include.spec import table_of

# The key of metadata that was found out so.
LOST = "lost_stamp"


def found(table: LakePath, actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Returns the metadata of a batch's commit, without its counts of rows; empty where nothing proves it.

    table: the path of the table. actions: the `txn` actions of the commit.
    """
    for action in actions:
        transaction = action.get("txn") or {}
        flow, _, generation = str(transaction.get("appId")).rpartition("/")
        if not generation.isdecimal() or locations.table_path(table_of(flow)) != table:
            continue
        with suppress(FlowBroken, KeyError, ValueError):
            return _metadata(flow, int(generation), int(transaction["version"]))
    return {}


def _metadata(flow: str, generation: int, batch: int) -> dict[str, Any]:
    """Raises FlowBroken where the checkpoint no longer has the offsets of the batch."""
    checkpoint = locations.checkpoints(flow) / str(generation)
    begin = checkpoint_files.planned_batch(checkpoint, batch - 1).end if batch else None
    return {
        "flow": flow,
        "generation": generation,
        "batch": batch,
        "source": checkpoint_files.owner(checkpoint)["source"],
        "source_from": begin,
        "source_to": checkpoint_files.planned_batch(checkpoint, batch).end,
        LOST: True,
    }


COMMIT = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
V2_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.[0-9a-f-]{36}\.(?:json|parquet)")
END_OF_PARQUET = b"PAR1"
# Operation metrics of Spark and of delta-rs. A replaceWhere includes the rows that it copies.
ROWS = ("numOutputRows", "num_added_rows")
FILES = ("numFiles", "numAddedFiles", "numTargetFilesAdded", "num_added_files")
MERGED = {did: f"numTargetRows{did.capitalize()}" for did in ("inserted", "updated", "deleted")}
BYTES = ("numOutputBytes", "numAddedBytes", "numTargetBytesAdded")
# By how much a clock that is set right may go back. More commits are read for each moment that is longer.
CLOCK_WENT_BACK_SECONDS = 60


@dataclass(frozen=True)
class LiveFile:
    """A live data file. rows: None where unknown. modified_at: seconds since 1970. is_clustered: by an OPTIMIZE."""

    path: str
    bytes: int
    rows: int | None
    modified_at: float
    is_clustered: bool = False


@dataclass(frozen=True)
class Tombstone:
    """A removed file. deleted_at: seconds since 1970. version: the commit that removed it. None: unknown."""

    path: str
    bytes: int | None
    deleted_at: float
    version: int | None = None


@dataclass(frozen=True)
class Commit:
    """A commit's commitInfo. timestamp: seconds since 1970. rows, files, bytes: what it added, None where unknown.

    metadata: the JSON object in userMetadata. parameters: operationParameters. merged: rows of a MERGE by `MERGED`.
    """

    version: int
    timestamp: float
    operation: str
    metadata: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    merged: dict[str, int] = field(default_factory=dict)

    @property
    def batch(self) -> tuple[int, int] | None:
        """Generation and batch of the flow that made it; None where no batch did."""
        if not {"flow", "generation", "batch"} <= self.metadata.keys():
            return None
        return int(self.metadata["generation"]), int(self.metadata["batch"])


@dataclass(frozen=True)
class Snapshot:
    """The table at a version: live files, tombstones and Delta table properties."""

    live: tuple[LiveFile, ...]
    tombstones: tuple[Tombstone, ...]
    properties: dict[str, str]


def no_log(table: LakePath) -> Unreachable:
    return Unreachable(f"{table} holds no Delta log: start the flow that writes the table first")


class DeltaLog:
    """The log as listed at construction, or with the existing `versions` alone. Later commits are not seen.

    Raises Unreachable where there is no log. Methods raise FlowBroken for an unreadable file.
    """

    def __init__(self, table: LakePath, versions: Iterable[int] | None = None) -> None:
        self.table = table
        self.directory = table / "_delta_log"
        # Listing makes `_last_checkpoint`, which may be outdated, unnecessary.
        listed = names(self.directory) if versions is None else ()
        self.names = sorted(listed) or [f"{version:020}.json" for version in versions or ()]
        self.versions = [int(match[1]) for name in self.names if (match := COMMIT.fullmatch(name))]
        if not self.versions:
            raise no_log(table)
        self.newest = self.versions[-1]

    @cached_property
    def checkpoints(self) -> dict[int, list[LakePath]]:
        """The files of each complete checkpoint of the classic format, by version, oldest first."""
        files: dict[int, list[LakePath]] = {}
        part_counts = {}
        # In name order, a version's single-file checkpoint follows its parts. It is preferred.
        for name in self.names:
            if match := CHECKPOINT.fullmatch(name):
                version, part_count = int(match[1]), int(match[2] or 1)
                files.setdefault(version, []).append(self.directory / name)
                part_counts[version] = part_count
                if not match[2]:
                    files[version] = files[version][-1:]
        return {
            version: parts
            for version, parts in files.items()
            if len(parts) == part_counts[version] and all(_ends_as_parquet(file) for file in parts)
        }

    @cached_property
    def state(self) -> Snapshot:
        return self.state_at(self.newest)

    def state_at(self, version: int) -> Snapshot:
        """Returns the table at a version, from the newest complete checkpoint and the commits after it."""
        start = max((number for number in self.checkpoints if number <= version), default=-1)
        for name in self.names:
            if (match := V2_CHECKPOINT.fullmatch(name)) and start < int(match[1]) <= version:
                raise _unsupported_checkpoint(self.directory / name)
        if (later := [number for number in self.after(start) if number <= version]) != list(
            range(start + 1, version + 1)
        ):
            gap = f"commits between version {start + 1} and {version} of its log, so nobody can tell what is in it"
            raise FlowBroken(f"{self.table} lacks {gap}: restore {self.directory} from its backup")
        replay = _Replay()
        for action in (entry for file in self.checkpoints.get(start, []) for entry in _checkpoint_actions(file)):
            replay.apply(action, None)
        for number in later:
            # A new deletion vector removes and adds the same path in one commit. The file stays live.
            for action in sorted(self.actions(number), key=lambda action: "add" in action):
                replay.apply(action, number)
        return Snapshot(tuple(replay.live.values()), tuple(replay.removed.values()), replay.properties)

    def version_at(self, moment: float) -> int | None:
        """Returns the newest version that was committed by a moment, in seconds since 1970; None before the first.

        Where the writers' clock went back, by `CLOCK_WENT_BACK_SECONDS` at most, a commit counts as no older than the
        one before it, as in Delta's time travel.
        """
        count = self.committed_by(moment)
        return self.versions[count - 1] if count else None

    def committed_by(self, moment: float, is_before: bool = False) -> int:
        """Returns how many versions come before the first that is later than a moment. is_before: or of that moment."""
        split = bisect_left if is_before else bisect_right
        count = split(self.versions, moment - CLOCK_WENT_BACK_SECONDS, key=self._committed_at)
        for version in self.versions[count:]:
            committed_at = self._committed_at(version)
            if committed_at > moment or (is_before and committed_at == moment):
                break
            count += 1
        return count

    def _committed_at(self, version: int) -> float:
        return self.commit(version).timestamp

    def after(self, version: int) -> list[int]:
        """Returns the versions in the log that are later than this one."""
        return [later for later in self.versions if later > version]

    def actions(self, version: int, containing: bytes = b"") -> Iterator[dict[str, Any]]:
        """Yields the actions of a commit. containing: parses only lines with this text, because parsing is slow."""
        yield from self._parse(version, self._lines(version), containing)

    def _lines(self, version: int) -> list[bytes]:
        try:
            # str.splitlines would also split at Unicode separators inside JSON strings.
            return self._file(version).read_bytes().splitlines()
        except OSError as error:
            raise self._damaged(version) from error

    def _parse(self, version: int, lines: Iterable[bytes], containing: bytes) -> Iterator[dict[str, Any]]:
        try:
            yield from (json.loads(line) for line in lines if line and containing in line)
        except ValueError as error:
            raise self._damaged(version) from error

    def _file(self, version: int) -> LakePath:
        return self.directory / f"{version:020}.json"

    def _damaged(self, version: int) -> FlowBroken:
        fault = f"{self._file(version)} is missing or damaged, so nobody can tell what is in the table"
        return FlowBroken(f"{fault}: restore it from its backup")

    def removed_after(self, version: int) -> Iterator[Tombstone]:
        """Yields the files that later commits removed, including those that were added again."""
        for later in self.after(version):
            for action in self.actions(later, b'"remove"'):
                if "remove" in action:
                    yield _tombstone(action["remove"], later)

    def commit(self, version: int) -> Commit:
        lines = self._lines(version)
        commit_infos = self._parse(version, lines, b'"commitInfo"')
        info: dict[str, Any] = next((action["commitInfo"] for action in commit_infos if action.get("commitInfo")), {})
        metrics = info.get("operationMetrics") or {}
        metadata = _json_object(info.get("userMetadata"))
        return Commit(
            version=version,
            timestamp=self._timestamp(version, info),
            operation=info.get("operation", "unknown"),
            metadata=metadata or found(self.table, self._parse(version, lines, b'"txn"')),
            rows=(rows := _first_metric(metrics, ROWS)) and rows - int(metrics.get("numCopiedRows", 0)),
            files=_first_metric(metrics, FILES),
            bytes=_first_metric(metrics, BYTES),
            parameters=info.get("operationParameters") or {},
            merged={did: int(metrics[name]) for did, name in MERGED.items() if name in metrics},
        )

    def commits(self) -> Iterator[Commit]:
        """Yields the commits, newest first. Each is read lazily."""
        return map(self.commit, reversed(self.versions))

    def _timestamp(self, version: int, info: dict[str, Any]) -> float:
        if milliseconds := info.get("inCommitTimestamp") or info.get("timestamp"):
            return float(milliseconds) / 1000
        return (self.directory / f"{version:020}.json").stat().st_mtime


class _Replay:
    """The state that results from the actions applied so far."""

    def __init__(self) -> None:
        self.live: dict[str, LiveFile] = {}
        self.removed: dict[str, Tombstone] = {}
        self.properties: dict[str, str] = {}

    def apply(self, action: dict[str, Any], version: int | None) -> None:
        if add := action.get("add"):
            path = unquote(add["path"])
            self.removed.pop(path, None)
            statistics = add.get("stats_parsed") or _json_object(add.get("stats"))
            rows, modified_at = statistics.get("numRecords"), add["modificationTime"] / 1000
            self.live[path] = LiveFile(path, add["size"], rows, modified_at, bool(add.get("clusteringProvider")))
        elif remove := action.get("remove"):
            tombstone = _tombstone(remove, version)
            self.live.pop(tombstone.path, None)
            self.removed[tombstone.path] = tombstone
        elif metadata := action.get("metaData"):
            self.properties = dict(metadata.get("configuration") or {})


def _unsupported_checkpoint(file: LakePath) -> FlowBroken:
    return FlowBroken(
        f"{file} is a checkpoint of format v2, and Sluice reads the classic one: set the table property "
        f"delta.checkpointPolicy to 'classic' and drop its feature v2Checkpoint"
    )


def _ends_as_parquet(file: LakePath) -> bool:
    """Returns whether a file ends with Parquet's magic bytes. A power loss can truncate a file, but no object."""
    if not isinstance(file, Path):
        return True
    with file.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - len(END_OF_PARQUET)))
        return stream.read() == END_OF_PARQUET


def _checkpoint_actions(file: LakePath) -> Iterator[dict[str, Any]]:
    columns = "add.path add.size add.modificationTime add.stats add.stats_parsed.numRecords add.clusteringProvider "
    columns += "remove.path remove.size remove.deletionTimestamp metaData.configuration sidecar.path "
    columns += "checkpointMetadata.version"
    try:
        actions = parquet.ParquetFile(clients.readable(file)).read(columns.split()).to_pylist()
    except (OSError, ValueError) as error:
        raise FlowBroken(f"{file} is damaged: delete it, so that the checkpoint before it counts") from error
    for action in actions:
        if action.get("sidecar") or action.get("checkpointMetadata"):
            raise _unsupported_checkpoint(file)
        yield {kind: value for kind, value in action.items() if value}


def _tombstone(remove: dict[str, Any], version: int | None) -> Tombstone:
    # Delta treats a missing deletionTimestamp as 0.
    deleted_at = (remove.get("deletionTimestamp") or 0) / 1000
    return Tombstone(unquote(remove["path"]), remove.get("size"), deleted_at, version)


def _json_object(text: str | None) -> dict[str, Any]:
    """Returns the JSON object in a text; empty for anything else."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _first_metric(metrics: dict[str, Any], names: tuple[str, ...]) -> int | None:
    return next((int(metrics[name]) for name in names if name in metrics), None)
