"""The rows of a stored table, for pyarrow."""

from typing import Any

from deltalake import DeltaTable
from pyarrow import fs  # type: ignore[import-untyped]

from include.settings import settings


def dataset(name: str, opened: DeltaTable | None = None) -> Any:
    """A `pyarrow.dataset.Dataset` of the table. opened: it, at the version that is meant.

    Read by Arrow's own file system. That of `deltalake` is Python, which Arrow's threads still call when the process is
    about to end; then that dies, of "terminate called without an active exception", or of a segmentation fault.
    """
    path = str(settings().table_path(name))
    return (opened or DeltaTable(path)).to_pyarrow_dataset(filesystem=fs.SubTreeFileSystem(path, fs.LocalFileSystem()))
