"""A Delta table's log, read without a JVM: what is live, what was removed, what each commit says of itself."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as parquet  # type: ignore[import-untyped]

from include.errors import Broken, Unreachable

COMMIT = re.compile(r"(\d{20})\.json")
CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")
NEW_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.[0-9a-f-]{36}\.(?:json|parquet)")
END_OF_PARQUET = b"PAR1"
# By Spark's writers and by delta-rs. A replaceWhere counts the rows it copies among them.
ROWS = ("numOutputRows", "num_added_rows")
FILES = ("numFiles", "numAddedFiles", "numTargetFilesAdded", "num_added_files")
BYTES = ("numOutputBytes", "numAddedBytes", "numTargetBytesAdded")


@dataclass(frozen=True)
class LiveFile:
    """A live data file. rows: None where unknown. modified_at: in seconds. is_clustered: by an OPTIMIZE."""

    path: str
    bytes: int
    rows: int | None
    modified_at: float
    is_clustered: bool = False


@dataclass(frozen=True)
class Tombstone:
    """A file that is in the table no more. deleted_at: in seconds. version: that removed it. None: nobody tells."""

    path: str
    bytes: int | None
    deleted_at: float
    version: int | None = None


@dataclass(frozen=True)
class Commit:
    """What a commit says of itself. timestamp: in seconds. rows, files, bytes: added ones, None where it does not say.

    metadata: the JSON object in `userMetadata`; empty where it holds something else. parameters: of the operation.
    """

    version: int
    timestamp: float
    operation: str
    metadata: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """The table at a version: what is in it, what was removed and not added again, its Delta properties."""

    live: tuple[LiveFile, ...]
    tombstones: tuple[Tombstone, ...]
    properties: dict[str, str]


class Log:
    """The log as its directory listed it when this was made; later commits are not seen.

    versions: these commits alone, which are there; nothing is listed. Raises Unreachable where there is no log, and
    Broken in every method that meets a file it cannot read.
    """

    def __init__(self, table: Path, versions: Iterable[int] | None = None) -> None:
        self.table = table
        self.directory = table / "_delta_log"
        # It tells all that `_last_checkpoint`, which may be old, could add.
        listed = self.directory.iterdir() if versions is None and self.directory.is_dir() else ()
        self.names = sorted(entry.name for entry in listed) or [f"{one:020}.json" for one in versions or ()]
        self.versions = [int(found[1]) for name in self.names if (found := COMMIT.fullmatch(name))]
        if not self.versions:
            raise Unreachable(f"{table} holds no Delta log: start the flow that writes the table first")
        self.newest = self.versions[-1]

    @cached_property
    def checkpoints(self) -> dict[int, list[Path]]:
        """The files of each complete checkpoint, by version, oldest first.

        Not those with parts missing or cut short. Not those of format v2, which Sluice does not read.
        """
        files: dict[int, list[Path]] = {}
        wanted = {}
        # By name, a version's single file comes after its parts, and is the better one.
        for name in self.names:
            if found := CHECKPOINT.fullmatch(name):
                version, parts = int(found[1]), int(found[2] or 1)
                files.setdefault(version, []).append(self.directory / name)
                wanted[version] = parts
                if not found[2]:
                    files[version] = files[version][-1:]
        return {
            version: found
            for version, found in files.items()
            if len(found) == wanted[version] and all(_ends_as_parquet(file) for file in found)
        }

    @cached_property
    def state(self) -> State:
        return self.state_at(self.newest)

    def state_at(self, version: int) -> State:
        """A version, from the newest complete checkpoint up to there and the commits after it."""
        start = max((one for one in self.checkpoints if one <= version), default=-1)
        for name in self.names:
            if (found := NEW_CHECKPOINT.fullmatch(name)) and start < int(found[1]) <= version:
                raise _new_checkpoint(self.directory / name)
        if (later := [one for one in self.after(start) if one <= version]) != list(range(start + 1, version + 1)):
            gone = f"commits between version {start + 1} and {version} of its log, so nobody can tell what is in it"
            raise Broken(f"{self.table} lacks {gone}: restore {self.directory} from its backup")
        replay = _Replay()
        for action in (one for file in self.checkpoints.get(start, []) for one in _of_checkpoint(file)):
            replay.apply(action, None)
        for one in later:
            # A new deletion vector removes and adds one path in one commit, in any order; the file stays.
            for action in sorted(self.actions(one), key=lambda action: "add" in action):
                replay.apply(action, one)
        return State(tuple(replay.live.values()), tuple(replay.removed.values()), replay.properties)

    def after(self, version: int) -> list[int]:
        """The later versions that the log has."""
        return [one for one in self.versions if one > version]

    def actions(self, version: int, containing: bytes = b"") -> Iterator[dict[str, Any]]:
        """The actions of a commit. containing: of the lines with that text only, as parsing is what takes the time."""
        file = self.directory / f"{version:020}.json"
        try:
            # Of bytes, as lines of text would also end at marks that a JSON string may hold.
            yield from (json.loads(line) for line in file.read_bytes().splitlines() if line and containing in line)
        except (OSError, ValueError) as error:
            gone = f"{file} is missing or damaged, so nobody can tell what is in the table"
            raise Broken(f"{gone}: restore it from its backup") from error

    def removed_after(self, version: int) -> Iterator[Tombstone]:
        """What later commits removed, also where it was added again."""
        for one in self.after(version):
            for action in self.actions(one, b'"remove"'):
                if "remove" in action:
                    yield _tombstone(action["remove"], one)

    def commit(self, version: int) -> Commit:
        found = self.actions(version, b'"commitInfo"')
        said: dict[str, Any] = next((one["commitInfo"] for one in found if one.get("commitInfo")), {})
        metrics = said.get("operationMetrics") or {}
        return Commit(
            version=version,
            timestamp=self._timestamp(version, said),
            operation=said.get("operation", "unknown"),
            metadata=_object(said.get("userMetadata")),
            rows=(rows := _first(metrics, ROWS)) and rows - int(metrics.get("numCopiedRows", 0)),
            files=_first(metrics, FILES),
            bytes=_first(metrics, BYTES),
            parameters=said.get("operationParameters") or {},
        )

    def commits(self) -> Iterator[Commit]:
        """Newest first, each read when it is asked for."""
        return map(self.commit, reversed(self.versions))

    def _timestamp(self, version: int, said: dict[str, Any]) -> float:
        if milliseconds := said.get("inCommitTimestamp") or said.get("timestamp"):
            return float(milliseconds) / 1000
        return (self.directory / f"{version:020}.json").stat().st_mtime


class _Replay:
    """What is left of the actions applied so far."""

    def __init__(self) -> None:
        self.live: dict[str, LiveFile] = {}
        self.removed: dict[str, Tombstone] = {}
        self.properties: dict[str, str] = {}

    def apply(self, action: dict[str, Any], version: int | None) -> None:
        if add := action.get("add"):
            path = unquote(add["path"])
            self.removed.pop(path, None)
            statistics = add.get("stats_parsed") or _object(add.get("stats"))
            rows, modified_at = statistics.get("numRecords"), add["modificationTime"] / 1000
            self.live[path] = LiveFile(path, add["size"], rows, modified_at, bool(add.get("clusteringProvider")))
        elif remove := action.get("remove"):
            tombstone = _tombstone(remove, version)
            self.live.pop(tombstone.path, None)
            self.removed[tombstone.path] = tombstone
        elif metadata := action.get("metaData"):
            self.properties = dict(metadata.get("configuration") or {})


def _new_checkpoint(file: Path) -> Broken:
    return Broken(
        f"{file} is a checkpoint of format v2, and Sluice reads the classic one: set the table property "
        f"delta.checkpointPolicy to 'classic' and drop its feature v2Checkpoint"
    )


def _ends_as_parquet(file: Path) -> bool:
    """A power loss leaves a name with nothing, or half a file, behind it."""
    with file.open("rb") as stream:
        stream.seek(max(0, stream.seek(0, 2) - len(END_OF_PARQUET)))
        return stream.read() == END_OF_PARQUET


def _of_checkpoint(file: Path) -> Iterator[dict[str, Any]]:
    columns = "add.path add.size add.modificationTime add.stats add.stats_parsed.numRecords add.clusteringProvider "
    columns += "remove.path remove.size remove.deletionTimestamp metaData.configuration sidecar.path "
    columns += "checkpointMetadata.version"
    try:
        actions = parquet.ParquetFile(file).read(columns.split()).to_pylist()
    except (OSError, ValueError) as error:
        raise Broken(f"{file} is damaged: delete it, so that the checkpoint before it counts") from error
    for action in actions:
        if action.get("sidecar") or action.get("checkpointMetadata"):
            raise _new_checkpoint(file)
        yield {kind: value for kind, value in action.items() if value}


def _tombstone(remove: dict[str, Any], version: int | None) -> Tombstone:
    # Without a time, Delta takes it for as old as can be.
    deleted_at = (remove.get("deletionTimestamp") or 0) / 1000
    return Tombstone(unquote(remove["path"]), remove.get("size"), deleted_at, version)


def _object(text: str | None) -> dict[str, Any]:
    """Empty where somebody wrote something of his own there."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _first(metrics: dict[str, Any], names: tuple[str, ...]) -> int | None:
    return next((int(metrics[name]) for name in names if name in metrics), None)
