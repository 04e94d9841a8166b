"""What is done to a stored table while nobody else writes it: compaction, VACUUM, a shorter log."""

import os

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from include.engine import commit, storage
from include.ledger.plan import Step
from include.settings import settings

SMALLER_THAN = "spark.databricks.delta.optimize.minFileSize"
TARGET = "spark.databricks.delta.optimize.maxFileSize"
# By default VACUUM is not to be found in the table's history.
LOGGING = "spark.databricks.delta.vacuum.logging.enabled"
# The default plans 10,000 tasks to list a handful of directories.
LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


def compact(spark: SparkSession, name: str, step: Step, stamp: dict[str, object]) -> None:
    """Make few files of many, as planned, in one commit that changes no row."""
    sizes = {SMALLER_THAN: step.numbers["smaller_than_bytes"], TARGET: step.numbers["target_bytes"]}
    with commit.stamped(spark, stamp, sizes):
        DeltaTable.forPath(spark, str(settings().table_path(name))).optimize().executeCompaction()


def vacuum(spark: SparkSession, name: str, retention_seconds: float, stamp: dict[str, object]) -> None:
    """Delete the files that no version of the last `retention_seconds` needs."""
    path, wanted = settings().table_path(name), storage.retention(retention_seconds)
    with commit.stamped(spark, stamp, {LOGGING: "true", LISTING: os.cpu_count() or 1}):
        stored = DeltaTable.forPath(spark, str(path)).detail().first()["properties"]
        if any(stored.get(key) != value for key, value in wanted.items()):
            pairs = ", ".join(f"'{key}' = '{value}'" for key, value in wanted.items())
            spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ({pairs})")
        spark.sql(f"VACUUM delta.`{path}`")
