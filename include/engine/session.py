"""The Spark session every job opens: Delta, the project's tables by name, and the settings that measured best."""

import os

from pyspark.sql import SparkSession

from include.catalog import Catalog
from include.control.process import scratch
from include.settings import settings

# Avro takes the memory that a length in its bytes asks for before it looks whether so many bytes are there; what runs
# out of memory is no bad row any more but a dead driver.
AVRO_LIMITS = {
    "org.apache.avro.limits.bytes.maxLength": 32_000_000,
    "org.apache.avro.limits.string.maxLength": 32_000_000,
    "org.apache.avro.limits.collectionItems.maxLength": 1_000_000,
}

CONF = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    # The default of 50 costs 50 tasks for every look at a small table.
    "spark.databricks.delta.snapshotPartitions": "1",
    # The default file manager forks chmod and readlink for every file; the lease rules out what it protects from.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # The default one forks twice for each commit to a local disk, and lets two threads write one version.
    "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    # Half the bytes of snappy for a quarter more CPU on raw payloads, free on typed columns.
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.hadoop.parquet.compression.codec.zstd.level": "1",
    # One flow's long batch must not starve the others of the driver.
    "spark.scheduler.mode": "FAIR",
    "spark.sql.streaming.stopTimeout": "30s",
    # They are fetched every few seconds, but a driver may have its hands full with the start of a flow.
    "spark.sql.streaming.numRecentProgressUpdates": "500",
    "spark.ui.enabled": "false",
    # Spark's default for timestamps, INT96, is deprecated, and other readers refuse a table with a year 9999 in it.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A flow that was stopped for long reads its source as of then; the vacuum guard has kept the files.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    # The rows of a merge come from a fixed version of their source, so they may be computed twice.
    "spark.databricks.delta.merge.materializeSource": "none",
    "spark.executor.defaultJavaOptions": " ".join(f"-D{name}={most}" for name, most in AVRO_LIMITS.items()),
}


def open_session(name: str, catalog: Catalog) -> SparkSession:
    """A session in which every stored table of the catalog answers to its name.

    Raises UsageError where Spark's master was not given and cannot be defaulted.
    """
    builder = SparkSession.builder.appName(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = builder.master("local[*]")
    for key, value in CONF.items():
        builder = builder.config(key, value)
    cores = os.cpu_count() or 1
    builder = builder.config("spark.sql.shuffle.partitions", str(cores))
    # By default each file of a batch is a task when they are looked at.
    builder = builder.config("spark.sql.sources.parallelPartitionDiscovery.parallelism", str(4 * cores))
    for key, value in _s3().items():
        builder = builder.config(key, value)
    builder = builder.config("spark.sql.warehouse.dir", str(settings().lake))
    # Of this process alone, so that what is left of it when it is killed can be told from what others use.
    builder = builder.config("spark.local.dir", str(scratch()))
    spark = builder.getOrCreate()
    for name, most in AVRO_LIMITS.items():
        # Of this JVM; it reads them when it first decodes something.
        spark._jvm.java.lang.System.setProperty(name, str(most))
    _without_sidecars(spark)
    for table in catalog.tables.values():
        register(spark, table.name)
        register(spark, table.quarantine)
    return spark


def _without_sidecars(spark: SparkSession) -> None:
    """Hadoop would write a second file with checksums beside each file on a local disk, and fork `chmod` for both."""
    jvm = spark._jvm
    local = jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("file:///"), spark._jsc.hadoopConfiguration())
    local.setWriteChecksum(False)


def _s3() -> dict[str, str]:
    """Where the S3 store is, if it is not Amazon's: Hadoop does not read the variable that other AWS tools read."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if not endpoint:
        return {}
    return {
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.endpoint.region": os.environ.get("AWS_REGION", "us-east-1"),
        "spark.hadoop.fs.s3a.path.style.access": "true",
    }


def register(spark: SparkSession, name: str) -> None:
    """Let SQL find the stored table by its name; nothing happens while it is not stored."""
    path = settings().table_path(name)
    if settings().is_stored(name):
        layer = name.split(".")[0]
        # IF NOT EXISTS alone warns each time that it does exist.
        if not spark.catalog.databaseExists(layer):
            spark.sql(f"CREATE DATABASE IF NOT EXISTS {layer}")
        spark.sql(f"CREATE TABLE IF NOT EXISTS {name} USING delta LOCATION '{path}'")
