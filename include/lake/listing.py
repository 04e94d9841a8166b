"""Lists the files of a directory of the lake."""

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial

from include.lake.object_path import LakePath, ObjectPath, ObjectStat

# In a store, listing a directory costs less than asking for this many objects.
MOST_ASKED = 20


@dataclass(frozen=True)
class FoundFile:
    """A file in a directory. path: relative to it. bytes: its size. modified_at: in seconds since 1970."""

    path: str
    bytes: int
    modified_at: float


def files(
    directory: LakePath, is_skipped: Callable[[str], bool] | None = None, prefix: str = ""
) -> Iterator[FoundFile]:
    """Yields the files of a directory and its subdirectories. is_skipped: by the path of a file or subdirectory."""
    for name, status_of in _entries(directory):
        path = f"{prefix}{name}"
        if is_skipped and is_skipped(path):
            continue
        if status_of is None:
            yield from files(directory / name, is_skipped, f"{path}/")
        else:
            status = status_of()
            yield FoundFile(path, status.st_size, status.st_mtime)


def missing(directory: LakePath, paths: Collection[str]) -> list[str]:
    """Returns those of these files, given by their paths in the directory, that do not exist."""
    if isinstance(directory, ObjectPath) and len(paths) > MOST_ASKED:
        found = {file.path for file in files(directory)}
        return [path for path in paths if path not in found]
    return [path for path in paths if not (directory / path).exists()]


def _entries(directory: LakePath) -> Iterator[tuple[str, Callable[[], ObjectStat | os.stat_result] | None]]:
    """Yields the names in a directory, each with a function that returns its status; None for a subdirectory."""
    if isinstance(directory, ObjectPath):
        for name, status in directory.entries().items():
            yield name, None if status is None else partial(lambda known: known, status)
        return
    with os.scandir(directory) as found:
        for entry in found:
            yield entry.name, None if entry.is_dir() else entry.stat
