"""Reads Kafka topics."""

import json
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.catalog import Catalog
from include.checkpoints import offset_ranges
from include.checkpoints.offset_ranges import OffsetRange
from include.engine.checked_schema import parsed
from include.engine.rows import writer_schemas
from include.engine.sources.reader import PlannedRead, SourceReader
from include.kafka import cluster
from include.spec import Flow, Kafka

OPTIONS = {
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    # The default, `read_uncommitted`, includes aborted transactions.
    "kafka.isolation.level": "read_committed",
}


class KafkaReader(SourceReader):
    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self._source = flow.source_as(Kafka)

    def stream(self, spark: SparkSession, is_new: bool) -> DataFrame:
        source = self._source
        subscription = ("subscribePattern", source.pattern) if source.pattern else ("subscribe", ",".join(source.names))
        reader = spark.readStream.format("kafka").options(**OPTIONS).option(*subscription)
        reader = reader.options(**cluster.of(source).spark_options()).option("startingOffsets", "earliest")
        return _with_ids(reader.option("maxOffsetsPerTrigger", source.max_offsets).load(), source)

    def columns(self, spark: SparkSession, tables: Catalog, changes: bool = False) -> StructType:
        return parsed(self._source.schema)

    def planned(self, begin: Any, end: Any) -> PlannedRead:
        ranges = tuple(offset_ranges.kafka_ranges(begin, end))
        return PlannedRead(sum(range_.count for range_ in ranges), ranges=ranges)


def records_from(spark: SparkSession, source: Kafka, begin_offsets: Mapping[str, Mapping[int, int]]) -> DataFrame:
    """Returns the records of these topics from these offsets on (topic, partition, offset); commits nothing to the
    broker.
    """
    assigned = {topic: list(partitions) for topic, partitions in begin_offsets.items()}
    reader = spark.read.format("kafka").options(**OPTIONS).option("assign", json.dumps(assigned))
    reader = reader.options(**cluster.of(source).spark_options()).option("startingOffsets", json.dumps(begin_offsets))
    return _with_ids(reader.load(), source)


def records_between(spark: SparkSession, source: Kafka, ranges: Iterable[OffsetRange]) -> DataFrame:
    """Returns the records of these ranges, at least one; commits nothing to the broker."""
    # Spark reads one range of a partition at a time.
    layers: list[dict[tuple[str, int], OffsetRange]] = []
    for range_ in ranges:
        place = range_.topic, range_.partition
        layer = next((layer for layer in layers if place not in layer), None)
        if layer is None:
            layers.append(layer := {})
        layer[place] = range_
    frames = [_ranges(spark, source, layer.values()) for layer in layers]
    return _with_ids(reduce(DataFrame.unionAll, frames), source)


def _ranges(spark: SparkSession, source: Kafka, ranges: Iterable[OffsetRange]) -> DataFrame:
    begin: dict[str, dict[int, int]] = {}
    end: dict[str, dict[int, int]] = {}
    for range_ in ranges:
        begin.setdefault(range_.topic, {})[range_.partition] = range_.first
        end.setdefault(range_.topic, {})[range_.partition] = range_.after
    assigned = {topic: list(partitions) for topic, partitions in begin.items()}
    reader = spark.read.format("kafka").options(**OPTIONS).option("assign", json.dumps(assigned))
    reader = reader.options(**cluster.of(source).spark_options()).option("startingOffsets", json.dumps(begin))
    return reader.option("endingOffsets", json.dumps(end)).load()


def _with_ids(rows: DataFrame, source: Kafka) -> DataFrame:
    return rows.withColumn("schema_id", writer_schemas.schema_id(F.col("value"))) if source.schema_ids else rows
