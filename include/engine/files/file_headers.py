"""Reads the heads of files: the header of a CSV, the footer of a Parquet file. The driver reads many at a time."""

import csv
import stat
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow
from pyarrow import fs

from include.checkpoints.landing_folder import file_system
from include.engine.files.formats import registry
from include.engine.files.formats.format import VANISHED, FileHeader
from include.errors import Unreachable
from include.lake import outages
from include.settings import settings
from include.spec import FILES_SCHEMA, Files, Flow, ddl

THREADS = 16
CHUNK_BYTES = 8_388_608
# Errors that the content of a file may cause. A length in it may be more than there is memory.
FILE_ERRORS = (OSError, ValueError, pyarrow.ArrowException, csv.Error, RecursionError, MemoryError)


def read_headers(table: Flow, paths: Iterable[str]) -> list[FileHeader]:
    """Returns the heads in the order of `paths`."""
    source = table.source_as(Files)
    file_format = registry.of(source)
    system, _ = file_system(settings().folder(source.path))
    declared = tuple(filter(None, ddl.columns(table.schema.removesuffix(FILES_SCHEMA))))

    def read_head(path: str) -> FileHeader:
        try:
            _require_regular(system, path)
            return file_format.head(system, path, source, declared)
        except FileNotFoundError:
            return FileHeader(path, problem="it was gone before it was read", rule=VANISHED)
        except FILE_ERRORS as error:
            return FileHeader(path, problem=_line(error), outage=outage(system, path))

    with ThreadPoolExecutor(THREADS) as pool:
        heads = list(pool.map(read_head, paths))
    return file_format.checked(table, source, heads)


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


def _require_regular(system: fs.FileSystem, path: str) -> None:
    """Raises OSError for what has no end, such as a pipe, and for a file that a link to a folder above it repeats."""
    if not isinstance(system, fs.LocalFileSystem):
        return
    if not stat.S_ISREG(Path(path).stat().st_mode):
        raise OSError("it is no regular file")
    folder = Path(path).parent
    if folder.resolve() != folder:
        folders = [parent.resolve() for parent in Path(path).parents]
        if len(set(folders)) < len(folders):
            raise OSError("it is reached by a link to a folder above it, and repeats a file there: remove the link")


def outage(system: fs.FileSystem, path: str) -> Unreachable | None:
    """Returns the error of reading the file's bytes, if any, whatever they mean; a later try may find it intact."""
    try:
        # A pipe would never end.
        _require_regular(system, path)
    except OSError:
        return None
    try:
        with system.open_input_stream(path, compression=None) as stream:
            while stream.read(CHUNK_BYTES):
                pass
    except (FileNotFoundError, PermissionError, IsADirectoryError):
        return None
    except OSError as error:
        if isinstance(system, fs.S3FileSystem):
            return outages.of_text(f"s3a://{path}", str(error))
        if not system.get_file_info(path).is_file:
            return None
        return Unreachable(f"{path} cannot be read now ({_line(error)}): it is tried again")
    return None
