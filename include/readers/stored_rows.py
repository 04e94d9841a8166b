"""The rows of a stored table, for pyarrow."""

from typing import Any

from deltalake import DeltaTable
from pyarrow import fs  # type: ignore[import-untyped]

from include.settings import settings


def dataset(name: str, opened: DeltaTable | None = None, files: str | None = None) -> Any:
    """A `pyarrow.dataset.Dataset` of the table. opened: it, at the version that is meant.

    files: a condition in SQL; a file that by its statistics holds no such row is left out.

    Read by Arrow's own file system. That of `deltalake` is Python, which Arrow's threads still call when the process is
    about to end; then that dies, of "terminate called without an active exception", or of a segmentation fault.
    """
    path = str(settings().table_path(name))
    where = fs.SubTreeFileSystem(path, fs.LocalFileSystem())
    return (opened or DeltaTable(path)).to_pyarrow_dataset(filesystem=where, file_pruning_predicate=files)
