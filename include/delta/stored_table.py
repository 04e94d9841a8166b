"""Opens a stored table without Spark: with delta-rs, or its rows as a pyarrow dataset."""

from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyarrow import fs

from include.lake import clients, locations, outages


def open_table(name: str, version: int | None = None) -> DeltaTable:
    """Opens a stored table. version: None for the newest. Raises `deltalake.exceptions.TableNotFoundError`.

    Raises Unreachable where the store of the lake does not answer.
    """
    path = locations.table_path(name)
    if not isinstance(path, Path):
        outages.raise_known(str(path))
    uri, options = clients.delta_rs(path)
    try:
        return DeltaTable(uri, version=version, storage_options=options)
    except OSError as error:
        if isinstance(path, Path) or isinstance(error, FileNotFoundError):
            raise
        raise outages.of_text(str(path), str(error)) from error


def find_table(name: str) -> DeltaTable | None:
    """Opens a table at its newest version; None if it is not stored."""
    try:
        return open_table(name)
    except TableNotFoundError:
        return None


def dataset(name: str, opened: DeltaTable | None = None, files: str | None = None) -> Any:
    """Returns a `pyarrow.dataset.Dataset` with the table's columns. opened: the table at the wanted version.

    files: an SQL condition. Files whose statistics exclude it are skipped.

    It uses Arrow's own file system. The one of `deltalake` is written in Python, and Arrow's threads may call it while
    the process ends. The process then dies of "terminate called without an active exception" or a segmentation fault.
    """
    return (opened or open_table(name)).to_pyarrow_dataset(filesystem=file_system(name), file_pruning_predicate=files)


def file_system(name: str) -> fs.FileSystem:
    """Returns the file system of a stored table; paths are relative to the table."""
    return clients.file_system(locations.table_path(name))
