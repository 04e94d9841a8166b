"""What lies in a landing folder, and which of it a flow has taken: without a JVM.

Spark's file source writes each file it plans to read into `sources/0` of the checkpoint, before the batch is planned.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow import fs  # type: ignore[import-untyped]

from include.errors import Broken, Unreachable
from include.settings import settings
from include.spec import Files

COMPACT = ".compact"
# What Spark's listing leaves out beside names that begin with a dot or an underscore, and which of these it takes.
UNFINISHED = "._COPYING_"
SHOWN = ("_metadata", "_common_metadata")


@dataclass(frozen=True)
class Landed:
    """A file that lies in the folder now. modified_ms: since 1970."""

    path: str
    bytes: int
    modified_ms: int


@dataclass(frozen=True)
class Taken:
    """A file that the source has planned. uri: as Spark writes it. found_ms: its date at that time, 0 if unknown."""

    uri: str
    found_ms: int
    entry: int

    @property
    def path(self) -> str:
        """As the file system has it."""
        parts = urlsplit(self.uri)
        return unquote(parts.netloc + parts.path)


def file_system(folder: str) -> tuple[fs.FileSystem, str]:
    """The file system of a folder, and its path there."""
    if "://" not in folder:
        return fs.LocalFileSystem(), folder
    # Hadoop's name for it.
    return fs.FileSystem.from_uri(folder.replace("s3a://", "s3://", 1))  # type: ignore[no-any-return]


def landed(source: Files) -> dict[str, Landed]:
    """By path, the files that the source would take. Raises Unreachable where the folder is not there."""
    folder = settings().folder(source.path)
    path, found = _list(folder, recursive=True)
    return {
        one.path: Landed(one.path, one.size or 0, (one.mtime_ns or 0) // 1_000_000)
        for one in found
        if one.type == fs.FileType.File
        and fnmatchcase(one.base_name, source.pattern)
        and not any(_is_hidden(part) for part in one.path.removeprefix(path).split("/"))
    }


def require(folder: str) -> None:
    """Raises Unreachable where it cannot be listed."""
    _list(folder, recursive=False)


def taken(checkpoint: Path, end: Any) -> list[Taken]:
    """Every file up to the source offset `end`, in the order in which they were found. Raises Broken."""
    if end is None:
        return []
    found = [one for one in _entries(checkpoint) if one.entry <= int(end["logOffset"])]
    # Spark would read again what its log has lost, without a word.
    if max((one.entry for one in found), default=-1) < int(end["logOffset"]):
        raise _damaged(checkpoint / "sources" / "0", "ends before what the batches have read")
    return found


def of_batch(checkpoint: Path, begin: Any, end: Any) -> list[Taken]:
    """The files of the batch that spans these source offsets."""
    before = -1 if begin is None else int(begin["logOffset"])
    return [one for one in taken(checkpoint, end) if one.entry > before]


def waiting(source: Files, checkpoint: Path, end: Any) -> list[Landed]:
    """The files that lie there and were not read yet. Raises Unreachable."""
    known = {one.path for one in taken(checkpoint, end)}
    return [file for path, file in landed(source).items() if path not in known]


def changed(files: list[Taken], lying: dict[str, Landed]) -> list[tuple[Taken, Landed]]:
    """Of the files that were taken, those that have another date now."""
    return [
        (one, now) for one in files if one.found_ms and (now := lying.get(one.path)) and now.modified_ms != one.found_ms
    ]


def seed(checkpoint: Path, files: list[Taken]) -> None:
    """Let a new checkpoint's source begin with these files as taken, all by its entry 0."""
    lines = [json.dumps({"path": one.uri, "timestamp": one.found_ms, "batchId": 0}) for one in files]
    log = checkpoint / "sources" / "0"
    log.mkdir(parents=True)
    (log / "0").write_text("\n".join(["v1", *lines]))


def _list(folder: str, recursive: bool) -> tuple[str, list[fs.FileInfo]]:
    """The folder's path in its file system, and what lies there."""
    try:
        system, path = file_system(folder)
        return path, system.get_file_info(fs.FileSelector(path, recursive=recursive))
    except OSError as error:
        raise Unreachable(f"{folder} cannot be listed ({error}): mount it, or create it") from error


def _entries(checkpoint: Path) -> Iterator[Taken]:
    """All of the log: its newest compaction, which holds everything before it, and what came after."""
    log = checkpoint / "sources" / "0"
    files = {entry.name: entry for entry in log.iterdir()} if log.is_dir() else {}
    compacted = max((int(name.removesuffix(COMPACT)) for name in files if name.endswith(COMPACT)), default=-1)
    later = sorted(int(name) for name in files if name.isdigit() and int(name) > compacted)
    if later and later != list(range(compacted + 1, later[-1] + 1)):
        raise _damaged(log, "has a hole")
    for name in [f"{compacted}{COMPACT}"] * (compacted >= 0) + [str(number) for number in later]:
        yield from _read(files[name])


def _read(file: Path) -> Iterator[Taken]:
    try:
        version, *lines = file.read_text(errors="replace").splitlines() or [""]
    except FileNotFoundError as error:
        raise _damaged(file, "is gone") from error
    if version != "v1":
        raise _damaged(file, "does not say which files were found, it was cut short")
    for line in filter(None, lines):
        try:
            entry = json.loads(line)
            yield Taken(entry["path"], int(entry["timestamp"]), int(entry["batchId"]))
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(file, "does not say which files were found, it was cut short") from error


def _damaged(file: Path, what: str) -> Broken:
    return Broken(
        f"{file} {what}: restore it from its backup, or let the flow begin a new generation of its checkpoint where "
        f"its table ends (action reset checkpoint)",
        "CHECKPOINT_DAMAGED",
    )


def _is_hidden(name: str) -> bool:
    """As Spark's listing has it."""
    if name.startswith(SHOWN):
        return False
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith(UNFINISHED)
