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


def write(rows: pa.Table, path: str, layout: Layout) -> dict[str, Any]:
    """The file as an `add` action of the log. path: of the table. No reader sees the file before its commit.

    rows: with at least the columns of the table. Raises Refused where they are of other types.
    """
    rows = conform(rows, layout)
    name = f"part-00000-{uuid.uuid4()}-c000.zstd.parquet"
    file = Path(path, name)
    # Whole numbers and decimals as Spark writes them, so that every file of a table has the same types.
    parquet.write_table(rows, file, compression="zstd", compression_level=1, store_decimal_as_integer=True)
    return {
        "path": name,
        "partitionValues": {},
        "size": file.stat().st_size,
        "modificationTime": math.floor(time.time() * 1000),
        "dataChange": True,
        "stats": statistics.of(rows, layout),
    }


def conform(rows: pa.Table, layout: Layout) -> pa.Table:
    """The table's columns, in its order and types."""
    try:
        return rows.select(layout.schema.names).cast(layout.schema)
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise Refused(f"its rows do not fit the table's columns: {error}") from error


def removal(path: str, size: int) -> dict[str, Any]:
    """The `remove` action of a file that other files take the place of."""
    return {
        "path": path,
        "deletionTimestamp": math.floor(time.time() * 1000),
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": size,
    }
