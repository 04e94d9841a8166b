"""Compacts the small files of a table by Arrow, in one commit that changes no row.

An OPTIMIZE costs several times the CPU, for Spark's queries. A table that Arrow does not rewrite exactly is left to it.
"""

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import parquet
from pyspark.sql import SparkSession

from include.engine.fast_path import data_file
from include.engine.fast_path.data_file import DataFile
from include.engine.fast_path.features import Layout, Refused
from include.engine.fast_path.internals import unexpected
from include.engine.fast_path.transaction import Target
from include.maintenance import plan as planning

BATCH_ROWS = 64 * 1024


def compact(spark: SparkSession, name: str, smaller_than_bytes: int, target_bytes: int) -> None:
    """Put files of less than `smaller_than_bytes` together into files of about `target_bytes`.

    The commit takes its stamp from the session. Raises Refused, with nothing left behind, where the table is not for
    this path.
    """
    if missing := unexpected(spark):
        raise Refused(missing)
    target = Target(spark, name)
    transaction = target.begin()
    sizes = _sizes(target.path, transaction.read_version)
    written: list[DataFile] = []
    removed: list[str] = []
    try:
        for paths in _bins(sizes, smaller_than_bytes, target_bytes):
            rows = _rows(target.path, paths, transaction.layout)
            written.append(data_file.write(rows, target.path, transaction.layout))
            removed += paths
    except (pa.ArrowException, OSError, Refused) as error:
        for file in written:
            file.delete()
        raise error if isinstance(error, Refused) else Refused(f"{type(error).__name__}: {error}") from error
    if removed:
        # Delta asks the thread's session for the stamp.
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        metrics = {
            "numRemovedFiles": len(removed),
            "numRemovedBytes": sum(sizes[path] for path in removed),
            "numAddedFiles": len(written),
            "numAddedBytes": sum(file.size for file in written),
        }
        removes = [data_file.removal(path, sizes[path], changes_data=False) for path in removed]
        transaction.compact([file.added(changes_data=False) for file in written], removes, metrics)


def _sizes(path: str, version: int) -> dict[str, int]:
    """Of the table's files at that version, in bytes."""
    try:
        actions = pa.table(DeltaTable(path, version=version).get_add_actions())
    except DeltaError as error:
        raise Refused(f"its log cannot be read outside Spark: {error}") from error
    sizes = dict(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))
    if strange := next((name for name in sizes if any(sign in name for sign in "/:%")), None):
        raise Refused(f"its file {strange} does not lie in its own directory")
    return sizes


def _bins(sizes: dict[str, int], smaller_than_bytes: int, target_bytes: int) -> Iterator[list[str]]:
    """Files that become one, as Delta packs them; one that would be alone stays as it is."""
    small = sorted((size, path) for path, size in sizes.items() if size < smaller_than_bytes)
    ends = planning.bins([size for size, _ in small], target_bytes)
    packed = zip(ends, small, strict=True)
    for _, group in groupby(packed, key=lambda pair: pair[0].bin):
        paths = [path for _, (_, path) in group]
        if len(paths) > 1:
            yield paths


def _rows(table: str, paths: list[str], layout: Layout) -> Iterator[pa.Table]:
    """All rows of these files, in their order; at least one part, though it be empty."""
    yield layout.schema.empty_table()
    for path in paths:
        # Spark's older timestamps count nanoseconds, in which Arrow gets no further than the year 2262.
        with parquet.ParquetFile(Path(table, path), coerce_int96_timestamp_unit="us") as file:
            _require_known_columns(path, file.schema_arrow, layout)
            for batch in file.iter_batches(BATCH_ROWS):
                yield _with_all_columns(pa.Table.from_batches([batch]), layout)


def _require_known_columns(file: str, columns: pa.Schema, layout: Layout) -> None:
    """Arrow would leave out what the table's columns do not name, without a word."""
    for column in columns:
        place = layout.schema.get_field_index(column.name)
        if place < 0 or _fields(column.type) != _fields(layout.schema.field(place).type):
            raise Refused(f"the column {column.name} of its file {file} is not as the table has it")


def _fields(kind: pa.DataType) -> Any:
    """The names of all fields within a type, in their order; None where there are none."""
    if pa.types.is_struct(kind):
        return [(field.name, _fields(field.type)) for field in kind]
    if pa.types.is_map(kind):
        return _fields(kind.key_type), _fields(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_fields(kind.value_type)]
    return None


def _with_all_columns(rows: pa.Table, layout: Layout) -> pa.Table:
    """Columns that were added to the table later are NULL in older files."""
    for column in layout.schema:
        if column.name not in rows.column_names:
            rows = rows.append_column(column, pa.nulls(len(rows), column.type))
    return rows
