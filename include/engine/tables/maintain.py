"""Maintenance of a stored table that nobody else writes meanwhile: compaction and VACUUM.

Arrow compacts small files in one commit that changes no row. OPTIMIZE costs several times the CPU time, because it runs
Spark queries. It still compacts the tables that Arrow could not rewrite exactly.
"""

import json
import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from delta.tables import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import parquet
from pyspark.sql import SparkSession

from include import logs
from include.delta import stored_table
from include.engine import commit, sql_text
from include.engine.fast_path import data_file
from include.engine.fast_path.data_file import DataFile
from include.engine.fast_path.table_layout import Layout, NotSupported
from include.engine.fast_path.transaction import Target, unexpected
from include.engine.rows.micro_batch import Refusal
from include.engine.tables import create_table
from include.lake import clients, locations
from include.lake.paths import LakePath
from include.maintenance import plan
from include.maintenance.plan import Step
from include.settings import settings

SMALLER_THAN = "spark.databricks.delta.optimize.minFileSize"
TARGET = "spark.databricks.delta.optimize.maxFileSize"
# ZCube sizes of a clustered table: at the first one OPTIMIZE leaves a group of clustered files alone.
CLOSED_CUBE = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold"
FULL_CUBE = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
# By default VACUUM leaves no entry in the table's history.
LOGGING = "spark.databricks.delta.vacuum.logging.enabled"
# By default listing a few directories takes 10,000 tasks.
LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
# Columns that Delta adds to what it writes together with a change feed. There files also have partition columns.
OF_CHANGE_FEED = {"_change_type", "__is_cdc"}
# Rows that are copied at a time.
BATCH_ROWS = 64 * 1024


def compact(spark: SparkSession, name: str, step: Step, metadata: dict[str, object]) -> None:
    """Merges small files into large ones, as planned, in one commit that changes no row."""
    sizes = {SMALLER_THAN: step.numbers["smaller_than_bytes"], TARGET: step.numbers["target_bytes"]}
    if cube_bytes := step.numbers.get("cube_bytes"):
        sizes |= {CLOSED_CUBE: cube_bytes, FULL_CUBE: cube_bytes}
    if not step.partitions and not cube_bytes and settings().fast_path:
        refusal = compact_files(spark, name, sizes[SMALLER_THAN], sizes[TARGET], metadata)
        if refusal is None:
            return
        logs.info(f"OPTIMIZE compacts it: {refusal.reason}", name)
    with commit.user_metadata(spark, metadata, sizes):
        optimize = DeltaTable.forPath(spark, str(locations.table_path(name))).optimize()
        if step.partitions:
            optimize = optimize.where(" OR ".join(f"({_predicate(directory)})" for directory in step.partitions))
        optimize.executeCompaction()


def compact_files(
    spark: SparkSession, name: str, smaller_than_bytes: int, target_bytes: int, metadata: dict[str, object]
) -> Refusal | None:
    """Merges files of less than `smaller_than_bytes` into files of about `target_bytes`.

    metadata: becomes the commit's `userMetadata`. Returns why it cannot compact the table, without leaving files, if
    so.
    """
    if difference := unexpected(spark):
        return Refusal(difference)
    target = Target(spark, name)
    transaction = target.begin()
    if isinstance(transaction, Refusal):
        return transaction
    sizes = sizes_of(name, transaction.read_version)
    if isinstance(sizes, Refusal):
        return sizes
    written: list[DataFile] = []
    removed: list[str] = []
    try:
        for paths in _bins(sizes, smaller_than_bytes, target_bytes):
            rows = _rows(target.path, paths, transaction.layout)
            written.append(data_file.write(rows, target.path, transaction.layout))
            removed += paths
    except (pa.ArrowException, OSError, NotSupported) as error:
        for file in written:
            file.delete()
        return Refusal(str(error) if isinstance(error, NotSupported) else f"{type(error).__name__}: {error}")
    if removed:
        metrics = {
            "numRemovedFiles": len(removed),
            "numRemovedBytes": sum(sizes[path] for path in removed),
            "numAddedFiles": len(written),
            "numAddedBytes": sum(file.size for file in written),
        }
        removes = [data_file.removal(path, sizes[path], changes_data=False) for path in removed]
        adds = [file.added(changes_data=False) for file in written]
        transaction.compact(adds, removes, json.dumps(metadata), metrics)
    return None


def sizes_of(name: str, version: int) -> dict[str, int] | Refusal:
    """Returns the sizes of the table's files at that version, in bytes."""
    try:
        actions = pa.table(stored_table.open_table(name, version).get_add_actions())
    except DeltaError as error:
        return Refusal(f"its log cannot be read outside Spark: {error}")
    sizes = dict(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))
    if outside := next((path for path in sizes if any(character in path for character in "/:%")), None):
        return Refusal(f"its file {outside} does not lie in its own directory")
    return sizes


def _bins(sizes: dict[str, int], smaller_than_bytes: int, target_bytes: int) -> Iterator[list[str]]:
    """Yields groups of files to merge, packed as Delta packs them. A group of one file is left alone."""
    small = sorted((size, path) for path, size in sizes.items() if size < smaller_than_bytes)
    ends = plan.pack_into_bins([size for size, _ in small], target_bytes)
    packed = zip(ends, small, strict=True)
    for _, group in groupby(packed, key=lambda pair: pair[0].bin):
        paths = [path for _, (_, path) in group]
        if len(paths) > 1:
            yield paths


def _rows(table: LakePath, paths: list[str], layout: Layout) -> Iterator[pa.Table]:
    """Yields all rows of these files in order; first an empty part, so that there is always one."""
    yield layout.schema.empty_table()
    for path in paths:
        yield from rows_of_file(table, path, layout)


def rows_of_file(table: LakePath, path: str, layout: Layout) -> Iterator[pa.Table]:
    """Yields the rows of one file in order. Raises NotSupported for columns that the table lacks."""
    # INT96 timestamps count nanoseconds, which in Arrow end in the year 2262.
    with parquet.ParquetFile(clients.seekable(table / path), coerce_int96_timestamp_unit="us") as file:
        stored = file.schema_arrow
        extra = {*OF_CHANGE_FEED, *layout.partitions} & {*stored.names} - {*layout.schema.names}
        _require_known_columns(path, (column for column in stored if column.name not in extra), layout)
        for batch in file.iter_batches(BATCH_ROWS):
            rows = pa.Table.from_batches([batch])
            yield _with_all_columns(rows.drop_columns([*extra]), layout)


def _require_known_columns(file: str, columns: Iterable[pa.Field], layout: Layout) -> None:
    """Raises NotSupported for columns that the table lacks, which Arrow would drop silently."""
    for column in columns:
        index = layout.schema.get_field_index(column.name)
        if index < 0 or _fields(column.type) != _fields(layout.schema.field(index).type):
            raise NotSupported(f"the column {column.name} of its file {file} is not as the table has it")


def _fields(type_: pa.DataType) -> Any:
    """Returns the names of all nested fields of a type, in order; None if there are none."""
    if pa.types.is_struct(type_):
        return [(field.name, _fields(field.type)) for field in type_]
    if pa.types.is_map(type_):
        return _fields(type_.key_type), _fields(type_.item_type)
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [_fields(type_.value_type)]
    return None


def _with_all_columns(rows: pa.Table, layout: Layout) -> pa.Table:
    """Adds columns that are newer than the file, as NULL."""
    for column in layout.schema:
        if column.name not in rows.column_names:
            rows = rows.append_column(column, pa.nulls(len(rows), column.type))
    return rows


def _predicate(directory: str) -> str:
    """Returns a partition's directory, such as `day=2026-03-01/country=de`, as a SQL condition."""
    terms = []
    for part in directory.split("/"):
        column, _, value = part.partition("=")
        comparison = "IS NULL" if value == NULL_PARTITION else f"= {sql_text.literal(unquote(value))}"
        terms.append(f"{sql_text.identifier(unquote(column))} {comparison}")
    return " AND ".join(terms)


def vacuum(spark: SparkSession, name: str, retention_seconds: float, metadata: dict[str, object]) -> None:
    """Deletes the files that no version of the last `retention_seconds` needs."""
    path, properties = locations.table_path(name), create_table.retention(retention_seconds)
    with commit.user_metadata(spark, metadata, {LOGGING: "true", LISTING: os.cpu_count() or 1}):
        detail = DeltaTable.forPath(spark, str(path)).detail().first()
        assert detail
        if any(detail["properties"].get(key) != value for key, value in properties.items()):
            pairs = sql_text.properties(properties)
            spark.sql(f"ALTER TABLE {sql_text.delta(path)} SET TBLPROPERTIES ({pairs})")
        spark.sql(f"VACUUM {sql_text.delta(path)}")
