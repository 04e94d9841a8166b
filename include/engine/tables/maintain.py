"""Maintenance of a stored table that nobody else writes meanwhile: OPTIMIZE and VACUUM."""

import os
from urllib.parse import unquote

from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from include import logs
from include.engine import sql_text
from include.engine.fast_path import compaction
from include.engine.tables import commit, create_table
from include.maintenance.plan import Step
from include.settings import settings

SMALLER_THAN = "spark.databricks.delta.optimize.minFileSize"
TARGET = "spark.databricks.delta.optimize.maxFileSize"
# ZCube sizes of a clustered table: at the first one OPTIMIZE leaves a group of clustered files alone.
CLOSED_CUBE = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold"
FULL_CUBE = "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.targetCubeSize"
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
# By default VACUUM leaves no entry in the table's history.
LOGGING = "spark.databricks.delta.vacuum.logging.enabled"
# By default listing a few directories takes 10,000 tasks.
LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"


def compact(spark: SparkSession, name: str, step: Step, metadata: dict[str, object]) -> None:
    """Merges small files into large ones, as planned, in one commit that changes no row."""
    sizes = {SMALLER_THAN: step.numbers["smaller_than_bytes"], TARGET: step.numbers["target_bytes"]}
    if cube_bytes := step.numbers.get("cube_bytes"):
        sizes |= {CLOSED_CUBE: cube_bytes, FULL_CUBE: cube_bytes}
    if not step.partitions and not cube_bytes and settings().fast_path:
        refusal = compaction.compact_files(spark, name, sizes[SMALLER_THAN], sizes[TARGET], metadata)
        if refusal is None:
            return
        logs.info(f"OPTIMIZE compacts it: {refusal.reason}", name)
    with commit.user_metadata(spark, metadata, sizes):
        optimize = DeltaTable.forPath(spark, str(settings().table_path(name))).optimize()
        if step.partitions:
            optimize = optimize.where(" OR ".join(f"({_predicate(directory)})" for directory in step.partitions))
        optimize.executeCompaction()


def _predicate(directory: str) -> str:
    """Returns a partition's directory, such as `day=2026-03-01/country=de`, as a SQL condition."""
    terms = []
    for part in directory.split("/"):
        column, _, value = part.partition("=")
        comparison = "IS NULL" if value == NULL_PARTITION else f"= {sql_text.literal(unquote(value))}"
        terms.append(f"{sql_text.identifier(unquote(column))} {comparison}")
    return " AND ".join(terms)


def vacuum(spark: SparkSession, name: str, retention_seconds: float, metadata: dict[str, object]) -> None:
    """Deletes the files that no version of the last `retention_seconds` needs."""
    path, properties = settings().table_path(name), create_table.retention(retention_seconds)
    with commit.user_metadata(spark, metadata, {LOGGING: "true", LISTING: os.cpu_count() or 1}):
        detail = DeltaTable.forPath(spark, str(path)).detail().first()
        assert detail
        if any(detail["properties"].get(key) != value for key, value in properties.items()):
            pairs = sql_text.properties(properties)
            spark.sql(f"ALTER TABLE {sql_text.delta(path)} SET TBLPROPERTIES ({pairs})")
        spark.sql(f"VACUUM {sql_text.delta(path)}")
