"""Writes rows as one data file of a Delta table, with the statistics by which readers skip it."""

import math
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet

from include.engine.fast_path import statistics
from include.engine.fast_path.features import Layout, Refused

# Whole numbers and decimals as Spark writes them, so that every file of a table has the same types.
FORMAT: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "store_decimal_as_integer": True}
# Of Arrow's buffers in a row group.
ROW_GROUP_BYTES = 64 * 2**20


class DataFile:
    """A file in a table's directory, which no reader sees before its commit.

    rows: how many it holds. stats: of these, as `statistics.of` gives them.
    """

    def __init__(self, table: str) -> None:
        self.name = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
        self.path = Path(table, self.name)
        self.rows = 0
        self.stats = ""

    @property
    def size(self) -> int:
        """In bytes."""
        return self.path.stat().st_size

    def added(self, changes_data: bool = True) -> dict[str, Any]:
        """The `add` action of the log. changes_data: its rows were not in the table."""
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


def write(parts: Iterable[pa.Table], table: str, layout: Layout) -> DataFile:
    """Rows as a file. parts: with at least the columns of the table, which become row groups. table: its path.

    Nothing is left behind where that fails. Raises Refused where the rows are of other types than the table's.
    """
    made = DataFile(table)
    stats: list[str] = []
    try:
        with parquet.ParquetWriter(made.path, layout.schema, **FORMAT) as writer:
            for rows in _row_groups(conform(part, layout) for part in parts):
                made.rows += len(rows)
                stats.append(statistics.of(rows, layout))
                writer.write_table(rows, row_group_size=max(1, len(rows)))
    except BaseException:
        made.delete()
        raise
    made.stats = stats[0] if len(stats) == 1 else statistics.together(stats)
    return made


def _row_groups(parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Parts put together to row groups; so much is in memory at a time, and one part more."""
    waiting: list[pa.Table] = []
    for part in parts:
        waiting.append(part)
        if sum(rows.nbytes for rows in waiting) >= ROW_GROUP_BYTES:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def conform(rows: pa.Table, layout: Layout) -> pa.Table:
    """The table's columns, in its order and types."""
    try:
        return rows.select(layout.schema.names).cast(layout.schema)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise Refused(f"its rows do not fit the table's columns: {error}") from error


def removal(path: str, size: int, changes_data: bool = True) -> dict[str, Any]:
    """The `remove` action of a file that other files take the place of. changes_data: with other rows."""
    return {
        "path": path,
        "deletionTimestamp": math.floor(time.time() * 1000),
        "dataChange": changes_data,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": size,
    }
