"""Holds small data files of tables in an object store in memory. Their names are unique, and they never change.

An aggregate reads the files of its current bucket in each batch. Arrow would send three requests for each of them.
"""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from include.lake.paths import LakePath, ObjectPath

LARGEST_BYTES = 1_000_000
MOST_BYTES = 64_000_000
THREADS = 16


def in_memory(stored: ds.FileSystemDataset, table: ObjectPath, sizes: Mapping[str, int]) -> ds.Dataset:
    """Returns the dataset with its small files in memory; unchanged if they do not fit.

    sizes: in bytes, by path in the table.
    """
    fragments = list(stored.get_fragments())
    # A path that the log spells in another way costs requests, and must not fail the flow.
    small = [fragment.path for fragment in fragments if sizes.get(fragment.path, LARGEST_BYTES + 1) <= LARGEST_BYTES]
    if sum(sizes[path] for path in small) > MOST_BYTES:
        return stored
    with ThreadPoolExecutor(THREADS) as pool:
        contents = dict(zip(small, pool.map(lambda path: _content(table / path), small), strict=True))
    return ds.FileSystemDataset(
        [
            stored.format.make_fragment(contents[path], partition_expression=fragment.partition_expression)
            if (path := fragment.path) in contents
            else fragment
            for fragment in fragments
        ],
        stored.schema,
        stored.format,
        stored.filesystem,
    )


def readable(path: LakePath) -> Any:
    """Returns what pyarrow reads as a Parquet file. Raises FileNotFoundError and Unreachable for an object."""
    return path if isinstance(path, Path) else pa.BufferReader(_content(path))


def _content(path: ObjectPath) -> pa.Buffer:
    key = str(path)
    with _lock:
        if key in _cached:
            _cached.move_to_end(key)
            return _cached[key]
    content = pa.py_buffer(path.read_bytes())
    if content.size <= LARGEST_BYTES:
        _remember(key, content)
    return content


def _remember(key: str, content: pa.Buffer) -> None:
    global _bytes
    with _lock:
        if key not in _cached:
            _cached[key] = content
            _bytes += content.size
        while _bytes > MOST_BYTES:
            _bytes -= _cached.popitem(last=False)[1].size


_cached: OrderedDict[str, pa.Buffer] = OrderedDict()
_bytes = 0
_lock = threading.Lock()
