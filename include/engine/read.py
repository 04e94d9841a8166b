"""Source rows as a streaming frame."""

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.engine import registry
from include.errors import Unreachable
from include.settings import settings
from include.spec import Kafka, Table


def stream(spark: SparkSession, table: Table) -> DataFrame:
    """The rows that `table` has yet to read. Raises Unreachable where its source table is not stored yet."""
    if isinstance(table.source, Kafka):
        return kafka(spark, table.source)
    source = table.source.table
    path = settings().table_path(source)
    if not (path / "_delta_log").is_dir():
        raise Unreachable(f"{table.flow} reads {source}, which is not stored yet: start the flow {source} first")
    return spark.readStream.format("delta").option("maxFilesPerTrigger", table.source.max_files).load(str(path))


def newest(spark: SparkSession, table: str) -> DataFrame | None:
    """The rows of a stored table as they are now, however often they are looked at; None where it is not stored."""
    path = settings().table_path(table)
    if not (path / "_delta_log").is_dir():
        return None
    return spark.read.format("delta").option("versionAsOf", DeltaTable(str(path)).version()).load(str(path))


def kafka(spark: SparkSession, source: Kafka) -> DataFrame:
    which = ("subscribePattern", source.pattern) if source.pattern else ("subscribe", ",".join(source.names))
    rows = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", settings().kafka)
        .option(*which)
        .option("startingOffsets", "earliest")
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", source.max_offsets)
        # The default reads what a producer has rolled back.
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    return rows.withColumn("schema_id", registry.schema_id(F.col("value"))) if source.schema_ids else rows
