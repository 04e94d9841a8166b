"""Opens the Spark session of every job: with Delta, the tables by name, and settings chosen by benchmarks."""

import importlib
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pyspark import SparkContext, cloudpickle
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from include.catalog import Catalog, table_packages
from include.control.leases.process import create_temporary_folder
from include.engine import sql_text
from include.errors import UsageError
from include.lake import locations, paths
from include.lake.paths import ObjectPath
from include.settings import LAKE, settings

# Avro allocates as much memory as a length field says, before it checks how many bytes follow. Without limits a bad row
# could kill the driver.
AVRO_LIMITS = {
    "org.apache.avro.limits.bytes.maxLength": 32_000_000,
    "org.apache.avro.limits.string.maxLength": 32_000_000,
    "org.apache.avro.limits.collectionItems.maxLength": 1_000_000,
}

S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
# The classes of `include/engine/s3`, which `make s3` compiles. On other file systems they do as Spark does.
LOG_STORE = "spark.delta.logStore.s3a.impl"
S3_CLASSES = {FILE_MANAGER: "sluice.S3CheckpointFileManager", LOG_STORE: "sluice.S3LogStore"}
# Seconds of an outage cost time only. After half a minute the flow fails, says so, and starts again by itself. With the
# defaults, a HEAD takes two and a half minutes to fail at status 500, and far longer if the store is silent.
S3A_PATIENCE = {
    "spark.hadoop.fs.s3a.connection.establish.timeout": "15s",
    "spark.hadoop.fs.s3a.connection.timeout": "15s",
    # Of a call of the SDK with its retries. Uploads have a longer one.
    "spark.hadoop.fs.s3a.connection.request.timeout": "30s",
    # Retries of the SDK, with short delays.
    "spark.hadoop.fs.s3a.attempts.maximum": "2",
    # S3A calls the SDK so many times again, and doubles its delays.
    "spark.hadoop.fs.s3a.retry.limit": "5",
    "spark.hadoop.fs.s3a.retry.throttle.limit": "8",
}

# PySpark logs each error as a line of JSON, which quotes values of rows. Callers log the error in one sentence.
LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")

CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # The default of 50 takes 50 tasks for every snapshot of a small table.
    "spark.databricks.delta.snapshotPartitions": "1",
    # The default file manager forks chmod and readlink for every file, to guard against writers that the lease
    # excludes.
    FILE_MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    # The default log store forks twice for each commit to a local disk, and lets two threads write one version.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    # S3A asks twice whether a file exists before it creates one. A commit on S3 fails by itself if its version exists.
    "spark.hadoop.fs.s3a.performance.flags": "create",
    # Half the size of snappy for a quarter more CPU time on raw payloads, and for none on typed columns.
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    # One flow's long batch must not starve the others of the driver.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.streaming.stopTimeout": "30s",
    # Reports are fetched every few seconds, but less often while the driver starts a flow.
    "spark.sql.streaming.numRecentProgressUpdates": "500",
    "spark.ui.enabled": "false",
    # Without its pages Spark still keeps what they would show: of each query the plan as text, up to a megabyte.
    "spark.sql.ui.retainedExecutions": "10",
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    # Spark's default for timestamps, INT96, is deprecated, and other readers refuse a table with a year 9999 in it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A flow that was stopped for long reads an old version of its source, whose files the vacuum guard has kept.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # A merge reads a fixed version of its source, so computing its rows twice gives the same rows.
    "spark.databricks.delta.merge.materializeSource": "none",
    # Cached rows are read at most three times, so compression costs more than it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # The JVM interprets methods of more bytes than this, so Spark has to generate several smaller ones.
    "spark.sql.codegen.hugeMethodLimit": "8000",
    # Spark 4.2.0 calls a function of single rows by Arrow in a form that its Python process waits for for ever.
    "spark.sql.execution.pythonUDF.arrow.enabled": "false",
    # A Python process that crashes says where.
    "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    "spark.executor.defaultJavaOptions": " ".join(f"-D{name}={most}" for name, most in AVRO_LIMITS.items()),
}


def open_session(name: str, catalog: Catalog, conf: Mapping[str, str] = MappingProxyType({})) -> SparkSession:
    """Opens a session in which SQL finds every stored table of the catalog by its name.

    conf: more Spark settings. Raises UsageError if Spark's master is not set and has no default.
    """
    builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master("local[*]")
    for key, value in {**CONF, **S3A_PATIENCE, **conf}.items():
        builder = builder.config(key, value)
    cores = os.cpu_count() or 1
    builder = builder.config("spark.sql.shuffle.partitions", str(cores))
    # By default listing a batch's files takes a task for each.
    builder = builder.config("spark.sql.sources.parallelPartitionDiscovery.parallelism", str(4 * cores))
    for key, value in _s3().items():
        builder = builder.config(key, value)
    # Only the databases of the session's catalog lie there; each table has a location.
    warehouse = settings().home / LAKE if settings().has_s3_lake else settings().lake
    builder = builder.config("spark.sql.warehouse.dir", str(warehouse))
    # A directory of this process alone, so that what a killed process leaves can be deleted.
    builder = builder.config("spark.local.dir", str(create_temporary_folder()))
    for logger in LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    spark = builder.getOrCreate()
    for name, limit in AVRO_LIMITS.items():
        # System properties of this JVM, which Avro reads when it first decodes a record.
        jvm_of(spark).java.lang.System.setProperty(name, str(limit))
    require_connector(spark, settings().lake)
    _without_sidecars(spark)
    for package in table_packages():
        # Python processes of executors cannot import a table file, or have imported an older one.
        cloudpickle.register_pickle_by_value(importlib.import_module(package))  # type: ignore[no-untyped-call]
    for table in catalog.tables.values():
        register(spark, table.name)
        register(spark, table.quarantine)
        register(spark, table.retained)
    return spark


def jvm_of(owner: SparkSession | type[SparkContext]) -> Any:
    """Returns the JVM gateway of a session, or of this process. py4j does not type what it reaches."""
    return owner._jvm


def require_connector(spark: SparkSession, url: str) -> None:
    """Raises UsageError if this driver lacks the S3 connector for the URL."""
    if url.startswith("s3a://") and not _has_class(spark, S3A):
        raise UsageError(f"{url} lies on S3, whose connector this driver has not: run `make s3`, and start it again")


def _has_class(owner: SparkSession | type[SparkContext], name: str) -> bool:
    return bool(jvm_of(owner).org.apache.spark.util.Utils.classIsLoadable(name))


def _without_sidecars(spark: SparkSession) -> None:
    """Turns off Hadoop's checksum files, for which it writes a second file next to each and forks `chmod` for both. It
    also looks for one when it reads, and fails if the name of the file has a colon.
    """
    jvm = jvm_of(spark)
    local_filesystem = jvm.org.apache.hadoop.fs.FileSystem.get(
        jvm.java.net.URI("file:///"), spark._jsc.hadoopConfiguration()
    )
    local_filesystem.setWriteChecksum(False)
    local_filesystem.setVerifyChecksum(False)


def _s3() -> dict[str, str]:
    """Returns the settings of S3, and of a store other than Amazon's; Hadoop ignores AWS_ENDPOINT_URL."""
    SparkContext._ensure_initialized()
    # A driver with older jars writes the same files, in more requests, and relies on the lock for its commits.
    conf = S3_CLASSES if all(_has_class(SparkContext, name) for name in S3_CLASSES.values()) else {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        return conf
    return conf | {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": os.environ.get("AWS_REGION", "us-east-1"),
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def late_commits_fail(spark: SparkSession) -> bool:
    """Returns whether a commit of this session fails if another process has made its version.

    That holds on S3, with the classes of `make s3`, if the store obeys `If-None-Match` also in a race. Raises
    Unreachable.
    """
    lake = locations.lake()
    if isinstance(lake, Path) or spark.conf.get(LOG_STORE, "") != S3_CLASSES[LOG_STORE]:
        return False
    is_on = spark._jsc.hadoopConfiguration().getBoolean("fs.s3a.create.conditional.enabled", True)
    return bool(is_on) and _refuses_to_replace(lake)


@lru_cache
def _refuses_to_replace(directory: ObjectPath) -> bool:
    """Asks the store once in this process."""
    return paths.has_one_winner(directory)


def register(spark: SparkSession, name: str) -> None:
    """Registers the stored table in Spark's catalog under its name; does nothing if it is not stored."""
    path = locations.table_path(name)
    if locations.is_stored(name):
        layer = name.split(".")[0]
        # IF NOT EXISTS alone logs a warning each time the database exists.
        if not spark.catalog.databaseExists(layer):
            spark.sql(f"CREATE DATABASE IF NOT EXISTS {layer}")
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION {sql_text.literal(path)}")
