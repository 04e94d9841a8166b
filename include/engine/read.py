"""Source rows as a streaming frame."""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from include.errors import Unreachable
from include.settings import settings
from include.spec import Files, Kafka, Table


def stream(spark: SparkSession, table: Table) -> DataFrame:
    """The rows that `table` has yet to read. Raises Unreachable where its source is not there yet."""
    if isinstance(table.source, Kafka):
        return kafka(spark, table.source)
    if isinstance(table.source, Files):
        return files(spark, table.source)
    source = table.source.table
    path = settings().table_path(source)
    if not (path / "_delta_log").is_dir():
        raise Unreachable(f"{table.name} reads {source}, which is not stored yet: start the flow {source} first")
    return spark.readStream.format("delta").option("maxFilesPerTrigger", table.source.max_files).load(str(path))


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


def files(spark: SparkSession, source: Files) -> DataFrame:
    """What this is good for is which files there are; `include.engine.files` reads them."""
    folder = settings().folder(source.path)
    if folder.startswith(f"{settings().landing}/") and "://" not in folder:
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
