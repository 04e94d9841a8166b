"""Hands paths of the lake to the libraries that read it beside Spark: delta-rs and Arrow."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from include.lake.paths import CONNECT_SECONDS, MOST_RETRIES, RETRY_SECONDS, LakePath, bucket_file_system

# Credentials, region and address are in the `AWS_*` variables, which all these libraries read.
STORAGE_OPTIONS = {
    "allow_http": "true",
    "connect_timeout": f"{CONNECT_SECONDS}s",
    "retry_timeout": f"{RETRY_SECONDS}s",
    "max_retries": str(MOST_RETRIES),
}


def delta_rs(path: LakePath) -> tuple[str, dict[str, str] | None]:
    """Returns the URI and the storage options of a table."""
    if isinstance(path, Path):
        return str(path), None
    return f"s3://{path.bucket}/{path.key}", STORAGE_OPTIONS


def file_system(path: LakePath) -> fs.FileSystem:
    """Returns an Arrow file system whose paths are relative to this directory."""
    if isinstance(path, Path):
        return fs.SubTreeFileSystem(str(path), fs.LocalFileSystem())
    return fs.SubTreeFileSystem(f"{path.bucket}/{path.key}", bucket_file_system(path.bucket))


def readable(path: LakePath) -> Any:
    """Returns what pyarrow reads as a Parquet file. It fetches an object with one request, and holds it in memory."""
    return path if isinstance(path, Path) else pa.BufferReader(path.read_bytes())


def seekable(path: LakePath) -> Any:
    """Returns what pyarrow reads as a Parquet file of any size, part by part."""
    return path if isinstance(path, Path) else file_system(path.parent).open_input_file(path.name)
