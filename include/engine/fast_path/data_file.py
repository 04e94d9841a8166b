"""Writes rows as one data file of a Delta table, with the statistics by which readers skip it."""

import math
import time
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyarrow import parquet

from include.engine.fast_path import statistics
from include.engine.fast_path.features import Layout, Refused

# Whole numbers and decimals as Spark writes them, so that every file of a table has the same types.
FORMAT: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "store_decimal_as_integer": True}


class DataFile:
    """A file in a table's directory, which no reader sees before its commit.

    stats: of its rows, as `statistics.of` gives them.
    """

    def __init__(self, table: str) -> None:
        self.name = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
        self.path = Path(table, self.name)
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


def write(rows: pa.Table, table: str, layout: Layout) -> dict[str, Any]:
    """The rows as a file, and that as an `add` action of the log. table: its path.

    rows: with at least the columns of the table. Raises Refused where they are of other types.
    """
    rows = conform(rows, layout)
    file = DataFile(table)
    parquet.write_table(rows, file.path, **FORMAT)
    file.stats = statistics.of(rows, layout)
    return file.added()


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
