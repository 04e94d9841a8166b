"""Creates the Delta tables that the declarations describe."""

import math
from collections.abc import Sequence

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.engine import declared
from include.engine.session import register
from include.errors import Broken
from include.settings import settings
from include.spec import Append, Kafka, Table

PROPERTIES = {
    # Cleaning the log inside a writer could take a version that some stream has yet to read.
    "delta.enableExpiredLogCleanup": "false",
}

# Delta wants its log to be kept for at least as long as deleted files. Sluice cleans it itself, by what is needed.
LOG_SECONDS = 30 * 86_400

# What a quarantined row carries beside its own columns.
QUARANTINE_SCHEMA = """
    _rules ARRAY<STRING> COMMENT 'the expectations it broke',
    _flow STRING COMMENT 'the flow that read it',
    _generation INT COMMENT 'generation of that flow''s checkpoint',
    _batch BIGINT COMMENT 'batch of that generation',
    _source STRING COMMENT 'JSON: where the batch ends in its source'
"""


def retention(seconds: float) -> dict[str, str]:
    """The properties by which VACUUM keeps what was deleted in the last `seconds`; it obeys nothing else."""
    return {
        "delta.deletedFileRetentionDuration": f"interval {math.ceil(seconds)} seconds",
        "delta.logRetentionDuration": f"interval {max(math.ceil(seconds), LOG_SECONDS)} seconds",
    }


def create(spark: SparkSession, table: Table) -> None:
    """Create the table, and its quarantine where it has expectations; existing ones get the columns they lack.

    Raises Broken where what is stored cannot become what is declared.
    """
    common = PROPERTIES | retention(table.maintain.retention_seconds)
    properties = dict(common)
    if isinstance(table.source, Kafka):
        # So that the payload is not searched for its smallest and greatest value.
        searched = ("timestamp", "partition", "offset", *table.cluster_by)
        properties["delta.dataSkippingStatsColumns"] = ",".join(dict.fromkeys(searched))
    if isinstance(table.write, Append):
        properties["delta.appendOnly"] = "true"
    schema = StructType.fromDDL(table.schema)
    said = {**properties, **declared.properties(table)}
    if _create(spark, table.name, schema, table.comment, said, table.cluster_by, table.partition_by):
        declared.follow(spark, table, properties)
    if table.expect:
        fields = schema.fields + StructType.fromDDL(QUARANTINE_SCHEMA).fields
        comment = f"Rows that broke an expectation of {table.name}"
        _create(spark, table.quarantine, StructType(fields), comment, common)


def _evolve(spark: SparkSession, name: str, schema: StructType) -> None:
    """Add the columns that are declared and not stored; rows written before have NULL there. Raises Broken."""
    stored = {field.name: field.dataType.simpleString() for field in spark.table(name).schema}
    for column in stored.keys() - set(schema.fieldNames()):
        raise Broken(
            f"{name}: column '{column}' is stored and no longer declared: declare it again, its new rows may be NULL",
            "SCHEMA_CHANGED",
        )
    for field in schema:
        kind = field.dataType.simpleString()
        if stored.get(field.name, kind) != kind:
            raise Broken(
                f"{name}: column '{field.name}' is stored as {stored[field.name].upper()} and declared "
                f"{kind.upper()}: declare it as it is stored, and the new type as a column of its own",
                "SCHEMA_CHANGED",
            )
    new = StructType([field for field in schema if field.name not in stored])
    if new:
        spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({new.toDDL()})")


def _create(
    spark: SparkSession,
    name: str,
    schema: StructType,
    comment: str,
    properties: dict[str, str],
    cluster_by: Sequence[str] = (),
    partition_by: Sequence[str] = (),
) -> bool:
    """Returns whether it was there already."""
    path = settings().table_path(name)
    if (path / "_delta_log").is_dir():
        register(spark, name)
        _evolve(spark, name, schema)
        return True
    builder = DeltaTable.createIfNotExists(spark).location(str(path)).comment(comment).addColumns(schema)
    for key, value in properties.items():
        builder = builder.property(key, value)
    if cluster_by:
        builder = builder.clusterBy(*cluster_by)
    if partition_by:
        builder = builder.partitionedBy(*partition_by)
    builder.execute()
    register(spark, name)
    return False
