"""Writes rows as one data file of a Delta table, with the statistics by which readers skip it."""

import math
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from include.engine.fast_path import statistics
from include.engine.fast_path.features import Layout, NotSupported
from include.lake.paths import LakePath
from include.settings import settings

# Integers and decimals as Spark writes them, so that all files of a table have the same types.
FORMAT: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "store_decimal_as_integer": True}
# Size of a row group in memory.
ROW_GROUP_BYTES = 64 * 2**20
# Larger files wait for their upload on the local disk.
MOST_BUFFERED_BYTES = 32 * 2**20


class DataFile:
    """A file in a table's directory, which readers do not see before its commit.

    rows: number of rows. size: in bytes. stats: their statistics, from `statistics.of`.
    """

    def __init__(self, table: LakePath) -> None:
        self.name = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
        self.path = table / self.name
        self.rows = 0
        self.size = 0
        self.stats = ""

    def added(self, changes_data: bool = True) -> dict[str, Any]:
        """Returns the `add` action. changes_data: the table did not hold its rows."""
        return {
            "path": self.name,
            "partitionValues": {},
            "size": self.size,
            "modificationTime": math.floor(time.time() * 1000),
            "dataChange": changes_data,
            "stats": self.stats,
        }

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


def write(parts: Iterable[pa.Table], table: LakePath, layout: Layout) -> DataFile:
    """Writes rows as a file. parts: become row groups, with at least the table's columns. table: its path.

    Deletes the file on failure. Raises NotSupported if the types of the rows differ from the table's.
    """
    file = DataFile(table)
    stats: list[str] = []
    try:
        with _sink(file) as sink, parquet.ParquetWriter(sink, layout.schema, **FORMAT) as writer:
            for rows in _row_groups(conform(part, layout) for part in parts):
                file.rows += len(rows)
                stats.append(statistics.of(rows, layout))
                writer.write_table(rows, row_group_size=max(1, len(rows)))
    except BaseException:
        file.delete()
        raise
    file.stats = stats[0] if len(stats) == 1 else statistics.merge(stats)
    return file


@contextmanager
def _sink(file: DataFile) -> Iterator[Any]:
    """Yields where to write the file, and notes its size. An object is written at the end, as a whole."""
    if isinstance(file.path, Path):
        yield file.path
        file.size = file.path.stat().st_size
        return
    with tempfile.SpooledTemporaryFile(MOST_BUFFERED_BYTES, dir=str(settings().temporary)) as buffer:
        yield buffer
        file.size = buffer.tell()
        buffer.seek(0)
        file.path.write_bytes(buffer)


def _row_groups(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Combines parts into row groups; holds one group and one part in memory."""
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(rows.nbytes for rows in waiting) >= ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def conform(rows: pa.Table, layout: Layout) -> pa.Table:
    """Returns the table's columns, in its order and types. Raises NotSupported."""
    try:
        return rows.select(layout.schema.names).cast(layout.schema)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise NotSupported(f"its rows do not fit the table's columns: {error}") from error


def removal(path: str, size: int, changes_data: bool = True) -> dict[str, Any]:
    """Returns the `remove` action of a file that others replace. changes_data: the others hold different rows."""
    return {
        "path": path,
        "deletionTimestamp": math.floor(time.time() * 1000),
        "dataChange": changes_data,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": size,
    }
