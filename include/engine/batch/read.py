"""Source rows as a streaming frame."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.catalog import Catalog
from include.engine.batch import schema_registry
from include.engine.check.checked_schema import parsed
from include.errors import Unreachable, UsageError
from include.readers import landing_folder, starting_version
from include.settings import settings
from include.spec import CHANGE_SCHEMA, Delta, Files, Kafka, Source, Table

KAFKA_OPTIONS = {
    "failOnDataLoss": "true",
    "includeHeaders": "true",
    # The default reads what a producer has rolled back.
    "kafka.isolation.level": "read_committed",
}
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
        starting_version.require_feed(flow, source)
        reader = reader.option("readChangeFeed", "true")
    if begins and (version := starting_version.first_version(flow, source)) is not None:
        reader = reader.option("startingVersion", version)
    return reader.load(str(path))


def newest(spark: SparkSession, table: str) -> DataFrame | None:
    """The rows of a stored table as they are now, however often they are looked at; None where it is not stored."""
    path = settings().table_path(table)
    if not settings().is_stored(table):
        return None
    return spark.read.format("delta").option("versionAsOf", DeltaTable(str(path)).version()).load(str(path))


def columns(spark: SparkSession, source: Source, tables: Catalog, changes: bool = False) -> StructType:
    """What a source delivers: of a table what is declared, and what files brought to it. changes: those of its feed."""
    if not isinstance(source, Delta):
        return parsed(source.schema)
    above = tables.tables[source.table]
    declared = parsed(above.schema)
    if isinstance(above.source, Files) and settings().is_stored(above.name):
        stored = spark.read.format("delta").load(str(settings().table_path(above.name))).schema
        declared = StructType([*declared, *[field for field in stored if field.name not in declared.fieldNames()]])
    return StructType([*declared, *parsed(CHANGE_SCHEMA)]) if changes else declared


def delta_files(spark: SparkSession, table: str, files: Iterable[str]) -> DataFrame:
    """The rows of these files of a stored table, and of no others."""
    path = settings().table_path(table)
    schema = spark.read.format("delta").load(str(path)).schema
    paths = [f"{path}/{file}" for file in files]
    return spark.read.schema(schema).option("basePath", str(path)).parquet(*paths)


def kafka(spark: SparkSession, source: Kafka) -> DataFrame:
    which = ("subscribePattern", source.pattern) if source.pattern else ("subscribe", ",".join(source.names))
    reader = spark.readStream.format("kafka").options(**KAFKA_OPTIONS).option(*which)
    reader = reader.option("kafka.bootstrap.servers", settings().kafka).option("startingOffsets", "earliest")
    return _with_ids(reader.option("maxOffsetsPerTrigger", source.max_offsets).load(), source)


def kafka_from(spark: SparkSession, source: Kafka, begins: Mapping[str, Mapping[int, int]]) -> DataFrame:
    """The records that each partition of these topics holds from an offset on; the broker keeps no trace of it."""
    assigned = {topic: list(partitions) for topic, partitions in begins.items()}
    reader = spark.read.format("kafka").options(**KAFKA_OPTIONS).option("assign", json.dumps(assigned))
    reader = reader.option("kafka.bootstrap.servers", settings().kafka).option("startingOffsets", json.dumps(begins))
    return _with_ids(reader.load(), source)


def _with_ids(rows: DataFrame, source: Kafka) -> DataFrame:
    return rows.withColumn("schema_id", schema_registry.schema_id(F.col("value"))) if source.schema_ids else rows


def files(spark: SparkSession, source: Files) -> DataFrame:
    """What this is good for is which files there are; `include.engine.files.batch_of_files` reads them."""
    folder = settings().folder(source.path)
    if "://" in folder:
        require_connector(spark, folder)
        # Spark would ask a store that does not answer for minutes.
        landing_folder.require(folder)
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


def require_connector(spark: SparkSession, folder: str) -> None:
    """Raises UsageError where this driver cannot read from there."""
    if folder.startswith("s3a://") and not spark._jvm.org.apache.spark.util.Utils.classIsLoadable(S3A):
        raise UsageError(f"{folder} lies on S3, whose connector this driver has not: run `make s3`, and start it again")
