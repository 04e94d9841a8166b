"""Lists the files in a landing folder, and which of them a flow has read, without a JVM.

Spark's file source logs each file in `sources/0` of the checkpoint before it plans the file's batch.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from include.errors import FlowBroken, Unreachable
from include.lake import outages
from include.lake.object_path import LakePath, names
from include.settings import settings
from include.spec import Files

COMPACT = ".compact"
# Spark's listing skips names with this suffix, and names that begin with a dot or an underscore, except SHOWN.
UNFINISHED = "._COPYING_"
SHOWN = ("_metadata", "_common_metadata")


@dataclass(frozen=True)
class FolderFile:
    """A file that is in the folder now. modified_ms: milliseconds since 1970."""

    path: str
    bytes: int
    modified_ms: int


@dataclass(frozen=True)
class PlannedFile:
    """A file in the source's log. uri: as Spark writes it. entry: the number of the log entry.

    found_ms: its modification time when Spark found it, in milliseconds since 1970; 0 if unknown.
    """

    uri: str
    found_ms: int
    entry: int

    @property
    def path(self) -> str:
        """The path in the file system."""
        parts = urlsplit(self.uri)
        return unquote(parts.netloc + parts.path)


def is_in_store(folder: str) -> bool:
    return folder.startswith(("s3a://", "s3://"))


def file_system(folder: str) -> tuple[fs.FileSystem, str]:
    """Returns the file system of a folder, and the folder's path there."""
    if "://" not in folder:
        return fs.LocalFileSystem(), folder
    # Hadoop calls the scheme s3a, Arrow calls it s3.
    return fs.FileSystem.from_uri(folder.replace("s3a://", "s3://", 1))  # type: ignore[no-any-return]


def files_in_folder(source: Files) -> dict[str, FolderFile]:
    """Returns the files that Spark's source would read, by path.

    Raises Unreachable where the folder cannot be listed.
    """
    folder = settings().folder(source.path)
    path, infos = _list_folder(folder, recursive=True)
    return {
        info.path: FolderFile(info.path, info.size or 0, (info.mtime_ns or 0) // 1_000_000)
        for info in infos
        if info.type == fs.FileType.File
        and fnmatchcase(info.base_name, source.pattern)
        and not any(_is_hidden(part) for part in info.path.removeprefix(path).split("/"))
    }


def require_listable(folder: str) -> None:
    """Raises Unreachable where the folder cannot be listed."""
    _list_folder(folder, recursive=False)


def planned_files(checkpoint: LakePath, end: Any) -> list[PlannedFile]:
    """Returns the files up to the source offset `end`, in the order in which Spark found them. Raises FlowBroken."""
    if end is None:
        return []
    files = [file for file in _log_entries(checkpoint) if file.entry <= int(end["logOffset"])]
    # Spark would silently read the files again that its log has lost.
    if max((file.entry for file in files), default=-1) < int(end["logOffset"]):
        raise _damaged(checkpoint / "sources" / "0", "ends before what the batches have read")
    return files


def files_of_batch(checkpoint: LakePath, begin: Any, end: Any) -> list[PlannedFile]:
    """Returns the files of the batch between these source offsets."""
    previous_entry = -1 if begin is None else int(begin["logOffset"])
    return [file for file in planned_files(checkpoint, end) if file.entry > previous_entry]


def unread_files(source: Files, checkpoint: LakePath, end: Any) -> list[FolderFile]:
    """Returns the files in the folder that were not read yet. Raises Unreachable."""
    read_paths = {file.path for file in planned_files(checkpoint, end)}
    return [file for path, file in files_in_folder(source).items() if path not in read_paths]


def changed(files: list[PlannedFile], in_folder: dict[str, FolderFile]) -> list[tuple[PlannedFile, FolderFile]]:
    """Returns the files that have another modification time now. in_folder: as `landed`."""
    return [
        (file, current)
        for file in files
        if file.found_ms and (current := in_folder.get(file.path)) and current.modified_ms != file.found_ms
    ]


def seed_source_log(checkpoint: LakePath, files: list[PlannedFile]) -> None:
    """Makes a new checkpoint's source treat these files as read, in its log entry 0."""
    lines = [json.dumps({"path": file.uri, "timestamp": file.found_ms, "batchId": 0}) for file in files]
    log = checkpoint / "sources" / "0"
    log.mkdir(parents=True)
    (log / "0").write_text("\n".join(["v1", *lines]))


def _list_folder(folder: str, recursive: bool) -> tuple[str, list[fs.FileInfo]]:
    """Returns the folder's path in its file system, and the entries of the folder."""
    try:
        system, path = file_system(folder)
        return path, system.get_file_info(fs.FileSelector(path, recursive=recursive))
    except OSError as error:
        if is_in_store(folder) and not isinstance(error, FileNotFoundError):
            raise outages.of_text(folder, str(error)) from error
        raise Unreachable(f"{folder} cannot be listed ({error}): mount it, or create it") from error


def _log_entries(checkpoint: LakePath) -> Iterator[PlannedFile]:
    """Yields the whole log: the newest compaction, which includes everything before it, and the later entries."""
    log = checkpoint / "sources" / "0"
    files = names(log)
    compacted = max((int(name.removesuffix(COMPACT)) for name in files if name.endswith(COMPACT)), default=-1)
    later = sorted(int(name) for name in files if name.isdigit() and int(name) > compacted)
    if later and later != list(range(compacted + 1, later[-1] + 1)):
        raise _damaged(log, "has a hole")
    for name in [f"{compacted}{COMPACT}"] * (compacted >= 0) + [str(number) for number in later]:
        yield from _read_log_file(log / name)


def _read_log_file(file: LakePath) -> Iterator[PlannedFile]:
    try:
        version, *lines = file.read_text(errors="replace").splitlines() or [""]
    except FileNotFoundError as error:
        raise _damaged(file, "is gone") from error
    if version != "v1":
        raise _damaged(file, "does not say which files were found, it was cut short")
    for line in filter(None, lines):
        try:
            entry = json.loads(line)
            yield PlannedFile(entry["path"], int(entry["timestamp"]), int(entry["batchId"]))
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(file, "does not say which files were found, it was cut short") from error


def _damaged(file: LakePath, what: str) -> FlowBroken:
    return FlowBroken(
        f"{file} {what}: restore it from its backup, or let the flow begin a new generation of its checkpoint where "
        f"its table ends (action reset checkpoint)",
        "CHECKPOINT_DAMAGED",
    )


def _is_hidden(name: str) -> bool:
    """Returns whether Spark's listing skips the name."""
    if name.startswith(SHOWN):
        return False
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith(UNFINISHED)
