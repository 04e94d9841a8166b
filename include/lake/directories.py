"""Lists the files of a directory of the lake, and writes what is there as a whole or not at all, also after a kill."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from include.lake.paths import LakePath, ObjectPath, ObjectStat, names, remove_tree

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


UNFINISHED = ".new"


def write_text(file: LakePath, text: str) -> None:
    """Writes the file, or replaces it."""
    if isinstance(file, Path):
        temporary = file.with_name(f"{file.name}{UNFINISHED}")
        temporary.write_text(text)
        temporary.rename(file)
    else:
        file.write_text(text)


@contextmanager
def new_directory(directory: LakePath) -> Iterator[LakePath]:
    """Yields a directory to fill, which becomes `directory` when the block ends.

    A disk renames it. A store cannot, so an object `<directory>.new` beside it says that it is unfinished.
    """
    if isinstance(directory, Path):
        temporary = directory.with_name(f"{directory.name}{UNFINISHED}")
        remove_tree(temporary)
        temporary.mkdir(parents=True)
        yield temporary
        temporary.rename(directory)
    else:
        mark = directory.parent / f"{directory.name}{UNFINISHED}"
        mark.write_text("")
        remove_tree(directory)
        yield directory
        mark.unlink()


def withdraw(directory: LakePath) -> None:
    """Makes a directory unfinished."""
    if isinstance(directory, Path):
        temporary = directory.with_name(f"{directory.name}{UNFINISHED}")
        remove_tree(temporary)
        directory.rename(temporary)
    else:
        (directory.parent / f"{directory.name}{UNFINISHED}").write_text("")


def unfinished(directory: LakePath) -> list[LakePath]:
    """Returns what says that a directory below this one is unfinished."""
    return [directory / name for name in names(directory) if name.endswith(UNFINISHED)]


def discard(unfinished: LakePath) -> None:
    """Deletes an unfinished directory."""
    if isinstance(unfinished, Path):
        remove_tree(unfinished)
    else:
        remove_tree(unfinished.parent / unfinished.name.removesuffix(UNFINISHED))
        unfinished.unlink()


def finished(directory: LakePath) -> list[str]:
    """Returns the names in a directory, without those that are unfinished."""
    entries = names(directory)
    left_out = {name for name in entries if name.endswith(UNFINISHED)}
    if not isinstance(directory, Path):
        left_out |= {name.removesuffix(UNFINISHED) for name in left_out}
    return [name for name in entries if name not in left_out]
