"""Opens a stored table as a pyarrow dataset."""

from typing import Any

from deltalake import DeltaTable
from pyarrow import fs

from include.settings import settings


def dataset(name: str, opened: DeltaTable | None = None, files: str | None = None) -> Any:
    """Returns a `pyarrow.dataset.Dataset` with the table's columns. opened: the table at the wanted version.

    files: an SQL condition. Files whose statistics exclude it are skipped.

    It uses Arrow's own file system. The one of `deltalake` is written in Python, and Arrow's threads may call it while
    the process ends. The process then dies of "terminate called without an active exception" or a segmentation fault.
    """
    path = str(settings().table_path(name))
    file_system = fs.SubTreeFileSystem(path, fs.LocalFileSystem())
    return (opened or DeltaTable(path)).to_pyarrow_dataset(filesystem=file_system, file_pruning_predicate=files)
