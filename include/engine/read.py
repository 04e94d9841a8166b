"""Source rows as a streaming frame."""

from pyspark.sql import DataFrame, SparkSession

from include.errors import Unreachable
from include.ledger import since
from include.settings import settings
from include.spec import Delta, Kafka, Table


def stream(spark: SparkSession, table: Table, begins: bool) -> DataFrame:
    """The rows that `table` has yet to read. begins: no batch is committed, so where it begins still counts.

    Raises Unreachable where its source does not hold yet what it asks for, and Broken where it does no longer.
    """
    if isinstance(table.source, Kafka):
        return kafka(spark, table.source)
    return delta(spark, table.name, table.source, begins)


def delta(spark: SparkSession, flow: str, source: Delta, begins: bool) -> DataFrame:
    path = settings().table_path(source.table)
    if not (path / "_delta_log").is_dir():
        raise Unreachable(f"{flow} reads {source.table}, which is not stored yet: start the flow {source.table} first")
    reader = spark.readStream.format("delta").option("maxFilesPerTrigger", source.max_files)
    if source.max_bytes is not None:
        reader = reader.option("maxBytesPerTrigger", source.max_bytes)
    if source.changes:
        since.require_feed(flow, source)
        reader = reader.option("readChangeFeed", "true")
    if begins and (version := since.first_version(flow, source)) is not None:
        reader = reader.option("startingVersion", version)
    return reader.load(str(path))


def kafka(spark: SparkSession, source: Kafka) -> DataFrame:
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings().kafka)
        .option("subscribe", source.topic)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", source.max_offsets)
        # The default reads what a producer has rolled back.
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
