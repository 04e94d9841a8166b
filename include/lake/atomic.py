"""Writes files and directories of the lake that are there as a whole or not at all, also after a kill."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from include.lake.object_path import LakePath, names, remove_tree

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
