"""Lists the files in a landing folder, and which of them a flow has read, without a JVM.

Spark's file source logs each file in `sources/0` of the checkpoint before it plans the file's batch.
"""

import json
import os
import stat
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from include.errors import FlowBroken, Unreachable
from include.lake import outages
from include.lake.paths import LakePath, names
from include.settings import settings
from include.spec import Files

COMPACT = ".compact"
# Spark's listing skips names with this suffix, and names that begin with a dot or an underscore, except SHOWN.
UNFINISHED = "._COPYING_"
SHOWN = ("_metadata", "_common_metadata")
# Spark's listing passes over files with names that are no UTF-8, and over links to files that are not there.
MISNAMED, DANGLING = "misnamed", "dangling"
# What makes a folder one that can be listed, or its listing one that needs it not.
MOUNT, ALLOW = "mount it, or create it", "let the user of the flows list it"
MOVE = f"{ALLOW}, move it away, or let its name begin with a dot"


@dataclass(frozen=True)
class FolderFile:
    """A file that is in the folder now. modified_ms: milliseconds since 1970. problem: why Spark passes over it."""

    path: str
    bytes: int
    modified_ms: int
    problem: str = ""

    @property
    def date(self) -> datetime | None:
        return date(self.modified_ms)


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
    return {file.path: file for file in matching_files(source) if not file.problem}


def matching_files(source: Files) -> Iterator[FolderFile]:
    """Yields the files of the source, also those that Spark passes over, each of these with its problem.

    Raises Unreachable where the folder cannot be listed.
    """
    folder = settings().folder(source.path)
    path, files = _list_local(folder) if "://" not in folder else _list_remote(folder)
    for file in files:
        parts = file.path.removeprefix(path).split("/")
        if fnmatchcase(parts[-1], source.pattern) and not any(map(_is_hidden, parts)):
            yield file


def require_listable(folder: str) -> None:
    """Raises Unreachable where the folder cannot be listed, or one in it on a local disk."""
    if "://" in folder:
        _list_folder(folder, recursive=False)
    else:
        deque(_list_local(folder)[1], maxlen=0)


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


def date(milliseconds: int) -> datetime | None:
    """Returns the date of a file, given since 1970; None beyond the years 1 to 9999, which some file systems keep."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def shown(name: str) -> str:
    """Returns a name of a file in which bytes that are no UTF-8 are escaped, such as `caf\\xe9.csv`."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _list_local(folder: str) -> tuple[str, Iterator[FolderFile]]:
    if not Path(folder).is_dir():
        raise _unlistable(folder, "it is no folder" if Path(folder).exists() else "it is not there", MOUNT)
    return folder, _walk(folder, ())


def _walk(folder: str, above: tuple[tuple[int, int], ...]) -> Iterator[FolderFile]:
    """Yields the files below a folder, also those with names that are no UTF-8. Leaves out what is hidden, unread.

    above: device and inode of the folders that lead here. A link to one of them would have no end.
    """
    try:
        entries = [entry for entry in os.scandir(folder) if not _is_hidden(entry.name)]
        status = Path(folder).stat()
    except OSError as error:
        if above and isinstance(error, FileNotFoundError):
            # It was removed meanwhile.
            return
        # Spark's listing fails, too.
        remedy = MOVE if above else ALLOW if isinstance(error, PermissionError) else MOUNT
        raise _unlistable(folder, str(error), remedy) from error
    here = (status.st_dev, status.st_ino)
    if here in above:
        return
    for entry in entries:
        try:
            status = entry.stat()
        except OSError as error:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            except OSError:
                raise _unlistable(folder, str(error), MOVE if above else ALLOW) from error
            if not entry.is_symlink():
                raise _unlistable(folder, str(error), MOVE if above else ALLOW) from error
            # To nothing, to itself, or to where nobody may look.
            yield FolderFile(shown(entry.path), 0, status.st_mtime_ns // 1_000_000, DANGLING)
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(entry.path, (*above, here))
            continue
        name = shown(entry.path)
        yield FolderFile(name, status.st_size, status.st_mtime_ns // 1_000_000, "" if name == entry.path else MISNAMED)


def _list_remote(folder: str) -> tuple[str, Iterator[FolderFile]]:
    path, infos = _list_folder(folder, recursive=True)
    return path, (
        FolderFile(info.path, info.size or 0, (info.mtime_ns or 0) // 1_000_000)
        for info in infos
        if info.type == fs.FileType.File
    )


def _list_folder(folder: str, recursive: bool) -> tuple[str, list[fs.FileInfo]]:
    """Returns the folder's path in its file system, and the entries of the folder."""
    try:
        system, path = file_system(folder)
        return path, system.get_file_info(fs.FileSelector(path, recursive=recursive))
    except OSError as error:
        if is_in_store(folder) and not isinstance(error, FileNotFoundError):
            raise outages.of_text(folder, str(error)) from error
        raise _unlistable(folder, str(error), MOUNT) from error


def _unlistable(folder: str, reason: str, remedy: str) -> Unreachable:
    return Unreachable(f"{shown(folder)} cannot be listed ({shown(reason)}): {remedy}")


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
        version, *lines = file.read_text(errors="replace").split("\n")
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
