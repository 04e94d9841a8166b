"""Source rows as a streaming frame."""

from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.engine import registry
from include.errors import Unreachable, UsageError
from include.ledger import landing, since
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table

S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def stream(spark: SparkSession, table: Table, begins: bool) -> DataFrame:
    """The rows that `table` has yet to read. begins: no batch is committed, so where it begins still counts.

    Raises Unreachable where its source does not hold yet what it asks for, and Broken where it does no longer.
    """
    if isinstance(table.source, Kafka):
        return kafka(spark, table.source)
    if isinstance(table.source, Files):
        return files(spark, table.source)
    return delta(spark, table.flow, table.source, begins)


def delta(spark: SparkSession, flow: str, source: Delta, begins: bool) -> DataFrame:
    path = settings().table_path(source.table)
    if not settings().is_stored(source.table):
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


def newest(spark: SparkSession, table: str) -> DataFrame | None:
    """The rows of a stored table as they are now, however often they are looked at; None where it is not stored."""
    path = settings().table_path(table)
    if not settings().is_stored(table):
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


def files(spark: SparkSession, source: Files) -> DataFrame:
    """What this is good for is which files there are; `include.engine.files` reads them."""
    folder = settings().folder(source.path)
    if "://" in folder:
        _require_connector(spark, folder)
        # Spark would ask a store that does not answer for minutes.
        landing.require(folder)
    elif folder.startswith(f"{settings().landing}/"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    limit = ("maxBytesPerTrigger", source.max_bytes) if source.max_bytes else ("maxFilesPerTrigger", source.max_files)
    return (
        spark.readStream.format("text")
        .option(*limit)
        .option("pathGlobFilter", source.pattern)
        # Without it, folders whose names hold a `=` are gone into, and others are not.
        .option("recursiveFileLookup", "true")
        # Spark would pass over a file that is much older than the newest it has seen.
        .option("maxFileAge", "36500d")
        .option("__globPaths__", "false")
        .load(folder if "://" in folder else f"file://{folder}")
    )


def _require_connector(spark: SparkSession, folder: str) -> None:
    if folder.startswith("s3a://") and not spark._jvm.org.apache.spark.util.Utils.classIsLoadable(S3A):
        raise UsageError(f"{folder} lies on S3, whose connector this driver has not: run `make s3`, and start it again")
