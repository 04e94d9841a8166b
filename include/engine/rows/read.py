"""Reads sources as DataFrames."""

import json
from collections.abc import Iterable, Mapping
from functools import reduce, singledispatch
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.catalog import Catalog
from include.checkpoints import landing_folder
from include.checkpoints.offset_ranges import OffsetRange
from include.delta import stored_table, versions
from include.engine.checked_schema import parsed
from include.engine.commit import read_table
from include.engine.rows import writer_schemas
from include.engine.session import require_connector
from include.errors import Unreachable
from include.kafka import cluster
from include.lake import locations
from include.settings import settings
from include.spec import CHANGE_SCHEMA, Delta, Files, Flow, Kafka

KAFKA_OPTIONS = {
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    # The default, `read_uncommitted`, includes aborted transactions.
    "kafka.isolation.level": "read_committed",
}


def stream(spark: SparkSession, table: Flow, is_new: bool) -> DataFrame:
    """Returns the rows that `table` has yet to read, as a stream. is_new: no batch is committed, so that a starting
    position applies.

    Raises Unreachable if the source does not hold that position yet, and FlowBroken if it no longer does.
    """
    return _stream_of(table.source, spark, table.flow, is_new)


@singledispatch
def _stream_of(source: object, spark: SparkSession, flow: str, is_new: bool) -> DataFrame:
    raise TypeError(f"{flow} reads {source}")


@_stream_of.register
def _delta(source: Delta, spark: SparkSession, flow: str, is_new: bool) -> DataFrame:
    path = locations.table_path(source.table)
    if not locations.is_stored(source.table):
        raise Unreachable(f"{flow} reads {source.table}, which is not stored yet: start the flow {source.table} first")
    reader = spark.readStream.format("delta").option("maxFilesPerTrigger", source.max_files)
    if source.max_bytes is not None:
        reader = reader.option("maxBytesPerTrigger", source.max_bytes)
    if source.changes:
        versions.require_change_feed(flow, source)
        reader = reader.option("readChangeFeed", "true")
    if is_new and (version := versions.first_version(flow, source)) is not None:
        reader = reader.option("startingVersion", version)
    return reader.load(str(path))


def newest(spark: SparkSession, table: str) -> DataFrame | None:
    """Returns the stored rows of a table, pinned to its present version; None if it is not stored."""
    if not locations.is_stored(table):
        return None
    return read_table(spark, table, stored_table.open_table(table).version())


def columns(spark: SparkSession, flow: Flow, tables: Catalog, changes: bool = False) -> StructType:
    """Returns the columns of the source of a flow, which is no folder. changes: as for `table_columns`."""
    if flow.source.reads_topics:
        return parsed(flow.source_as(Kafka).schema)
    return table_columns(spark, flow.source.table, tables, changes)


def table_columns(spark: SparkSession, name: str, tables: Catalog, changes: bool = False) -> StructType:
    """Returns the columns of a table: the declared ones, and those that files have added. changes: with the columns of
    its change feed.
    """
    table = tables.tables[name]
    declared = parsed(table.schema)
    if table.reads_files and locations.is_stored(table.name):
        stored = read_table(spark, table.name).schema
        declared = StructType([*declared, *[field for field in stored if field.name not in declared.fieldNames()]])
    return StructType([*declared, *parsed(CHANGE_SCHEMA)]) if changes else declared


def delta_files(spark: SparkSession, table: str, files: Iterable[str]) -> DataFrame:
    """Returns the rows of these files of a stored table, with the table's columns."""
    path = locations.table_path(table)
    schema = read_table(spark, table).schema
    paths = [f"{path}/{file}" for file in files]
    return spark.read.schema(schema).option("basePath", str(path)).parquet(*paths)


@_stream_of.register
def _kafka(source: Kafka, spark: SparkSession, flow: str, is_new: bool) -> DataFrame:
    subscription = ("subscribePattern", source.pattern) if source.pattern else ("subscribe", ",".join(source.names))
    reader = spark.readStream.format("kafka").options(**KAFKA_OPTIONS).option(*subscription)
    reader = reader.options(**cluster.of(source).spark_options()).option("startingOffsets", "earliest")
    return _with_ids(reader.option("maxOffsetsPerTrigger", source.max_offsets).load(), source)


def kafka_from(spark: SparkSession, source: Kafka, begin_offsets: Mapping[str, Mapping[int, int]]) -> DataFrame:
    """Returns the records of these topics from these offsets on (topic, partition, offset); commits nothing to the
    broker.
    """
    assigned = {topic: list(partitions) for topic, partitions in begin_offsets.items()}
    reader = spark.read.format("kafka").options(**KAFKA_OPTIONS).option("assign", json.dumps(assigned))
    reader = reader.options(**cluster.of(source).spark_options()).option("startingOffsets", json.dumps(begin_offsets))
    return _with_ids(reader.load(), source)


def kafka_between(spark: SparkSession, source: Kafka, ranges: Iterable[OffsetRange]) -> DataFrame:
    """Returns the records of these ranges, at least one; commits nothing to the broker."""
    # Spark reads one range of a partition at a time.
    layers: list[dict[tuple[str, int], OffsetRange]] = []
    for range_ in ranges:
        place = range_.topic, range_.partition
        layer = next((layer for layer in layers if place not in layer), None)
        if layer is None:
            layers.append(layer := {})
        layer[place] = range_
    frames = [_kafka_ranges(spark, source, layer.values()) for layer in layers]
    return _with_ids(reduce(DataFrame.unionAll, frames), source)


def _kafka_ranges(spark: SparkSession, source: Kafka, ranges: Iterable[OffsetRange]) -> DataFrame:
    begin: dict[str, dict[int, int]] = {}
    end: dict[str, dict[int, int]] = {}
    for range_ in ranges:
        begin.setdefault(range_.topic, {})[range_.partition] = range_.first
        end.setdefault(range_.topic, {})[range_.partition] = range_.after
    assigned = {topic: list(partitions) for topic, partitions in begin.items()}
    reader = spark.read.format("kafka").options(**KAFKA_OPTIONS).option("assign", json.dumps(assigned))
    reader = reader.options(**cluster.of(source).spark_options()).option("startingOffsets", json.dumps(begin))
    return reader.option("endingOffsets", json.dumps(end)).load()


def _with_ids(rows: DataFrame, source: Kafka) -> DataFrame:
    return rows.withColumn("schema_id", writer_schemas.schema_id(F.col("value"))) if source.schema_ids else rows


@_stream_of.register
def _files(source: Files, spark: SparkSession, flow: str, is_new: bool) -> DataFrame:
    """Returns a stream that finds new files; `include.engine.batch.batch_of_files` reads their contents."""
    folder = settings().folder(source.path)
    if "://" in folder:
        require_connector(spark, folder)
    elif folder.startswith(f"{settings().landing}/"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    # Spark would retry for minutes if a store does not respond, and names no remedy.
    landing_folder.require_listable(folder)
    limit = ("maxBytesPerTrigger", source.max_bytes) if source.max_bytes else ("maxFilesPerTrigger", source.max_files)
    return (
        spark.readStream.format("text")
        .option(*limit)
        .option("pathGlobFilter", source.pattern)
        # Without this option Spark descends only into folders with a `=` in their names.
        .option("recursiveFileLookup", "true")
        # By default Spark ignores files much older than the newest it has seen, which may have any date.
        .option("maxFileAge", "1000000000d")
        .option("__globPaths__", "false")
        .load(folder if "://" in folder else f"file://{folder}")
    )
