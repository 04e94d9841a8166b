"""Creates the Delta tables that the declarations describe."""

import math
from collections.abc import Callable, Sequence

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from include.engine.fast_path import path
from include.engine.session import register
from include.engine.tables import table_properties
from include.errors import Broken
from include.settings import settings
from include.spec import Append, Files, Table

PROPERTIES = {
    # Cleaning the log inside a writer could take a version that some stream has yet to read.
    "delta.enableExpiredLogCleanup": "false",
}

# Delta replays the log in Spark for each checkpoint, which costs as much as ten small batches of the fast path. Spark's
# own writers replay it for each batch, so their tables stay with a checkpoint every tenth commit, Delta's default.
SELDOM_CHECKPOINTS = {"delta.checkpointInterval": "100"}

# Delta wants its log to be kept for at least as long as deleted files. Sluice cleans it itself, by what is needed.
LOG_SECONDS = 30 * 86_400

# By which rows as Kafka delivers them are looked for.
KAFKA_PLACE = ("timestamp", "partition", "offset")

# The way out where what is declared cannot follow from what is stored.
ANEW = "make all of it anew (jobs/backfill.py --full)"

# How a statement that replaces a table calls its rows.
NEW = "_new_rows"

# What a quarantined row carries beside its own columns.
QUARANTINE_SCHEMA = """
    _rules ARRAY<STRING> COMMENT 'the expectations it broke',
    _flow STRING COMMENT 'the flow that read it',
    _generation INT COMMENT 'generation of that flow''s checkpoint',
    _batch BIGINT COMMENT 'batch of that generation',
    _source STRING COMMENT 'JSON: where the batch ends in its source',
    _replay BIGINT COMMENT 'the replay that is about to put the row into the table'
"""

# What it carries where it is a file that could not be read.
FILE_SCHEMA = """
    _filename STRING COMMENT 'the file, below the folder of the source',
    length BIGINT COMMENT 'its bytes, NULL where it was gone',
    modification_time TIMESTAMP COMMENT 'its date, NULL where it was gone',
    _reason STRING COMMENT 'why it is not in the table as it lies there'
"""


def retention(seconds: float) -> dict[str, str]:
    """The properties by which VACUUM keeps what was deleted in the last `seconds`; it obeys nothing else."""
    return {
        "delta.deletedFileRetentionDuration": f"interval {math.ceil(seconds)} seconds",
        "delta.logRetentionDuration": f"interval {max(math.ceil(seconds), LOG_SECONDS)} seconds",
    }


def _properties(table: Table) -> dict[str, str]:
    """Those of the table and of its quarantine."""
    return PROPERTIES | retention(table.maintain.retention_seconds) | (SELDOM_CHECKPOINTS if path.suits(table) else {})


def create(spark: SparkSession, table: Table, alter: Callable[[str], object] | None = None) -> None:
    """Create the table, and its quarantine where it needs one; existing ones get the columns they lack.

    alter: what runs a statement that changes a stored table; by default the session, which is right for whoever has
    the table to himself. Raises Broken where what is stored cannot become what is declared.
    """
    alter = alter or (lambda statement: spark.sql(statement))
    properties = _properties(table)
    if isinstance(table.write, Append):
        # Bronze keeps what arrived; of other tables a backfill replaces rows.
        properties["delta.appendOnly"] = "true" if table.layer == "bronze" else "false"
    schema = StructType.fromDDL(table.schema)
    if table.layer == "bronze" and set(KAFKA_PLACE) < set(schema.fieldNames()):
        # So that the payload is not searched for its smallest and greatest value.
        properties["delta.dataSkippingStatsColumns"] = ",".join(dict.fromkeys((*KAFKA_PLACE, *table.cluster_by)))
    is_of_files = isinstance(table.source, Files)
    said = {**properties, **table_properties.properties(table)}
    if settings().is_stored(table.name):
        if not table_properties.is_followed(table, schema, properties, may_have_more=is_of_files):
            _evolve(spark, table.name, schema, alter, may_have_more=is_of_files)
            table_properties.follow(spark, table, properties, alter)
    else:
        _create(spark, table.name, schema, table.comment, said, table.cluster_by, table.partition_by)
    # One that is there stays in use: a batch that is tried again may have left rows in it by other rules than today's.
    if table.has_quarantine or settings().is_stored(table.quarantine):
        create_quarantine(spark, table, alter)


def create_quarantine(spark: SparkSession, table: Table, alter: Callable[[str], object]) -> None:
    """The same for its quarantine alone."""
    is_of_files = isinstance(table.source, Files)
    kept = StructType.fromDDL(FILE_SCHEMA if is_of_files else table.schema)
    schema = StructType(kept.fields + StructType.fromDDL(QUARANTINE_SCHEMA).fields)
    if settings().is_stored(table.quarantine):
        if not table_properties.has_columns(settings().table_path(table.quarantine), schema):
            _evolve(spark, table.quarantine, schema, alter)
        return
    comment = f"{'Files that are not in' if is_of_files else 'Rows that broke a rule of'} {table.name}"
    _create(spark, table.quarantine, schema, comment, _properties(table))


def replace(rows: DataFrame, table: Table) -> None:
    """Make these rows all that the table holds, with schema, layout and properties as declared, in one commit.

    Not by `create` and an overwrite: between the two, a reader would see it empty.
    """
    schema = StructType.fromDDL(table.schema)
    properties = _properties(table) | table_properties.properties(table)
    pairs = ", ".join(
        f"{table_properties.literal(key)} = {table_properties.literal(value)}" for key, value in properties.items()
    )
    # The writer of a DataFrame cannot cluster a Delta table.
    layout = "CLUSTER BY" if table.cluster_by else "PARTITIONED BY"
    columns = ", ".join(f"`{name}`" for name in table.cluster_by or table.partition_by)
    rows.to(schema).createOrReplaceTempView(NEW)
    try:
        rows.sparkSession.sql(
            f"CREATE OR REPLACE TABLE delta.`{settings().table_path(table.name)}` USING delta "
            f"{f'{layout} ({columns})' if columns else ''} COMMENT {table_properties.literal(table.comment)} "
            f"TBLPROPERTIES ({pairs}) AS SELECT * FROM {NEW}"
        )
    finally:
        rows.sparkSession.catalog.dropTempView(NEW)
    register(rows.sparkSession, table.name)


def _evolve(
    spark: SparkSession,
    name: str,
    schema: StructType,
    alter: Callable[[str], object],
    may_have_more: bool = False,
) -> None:
    """Add the columns that are declared and not stored; rows written before have NULL there. Raises Broken.

    may_have_more: columns that nobody declared, which files brought.
    """
    register(spark, name)
    stored = {field.name: field.dataType.simpleString() for field in spark.table(name).schema}
    for column in set() if may_have_more else stored.keys() - set(schema.fieldNames()):
        raise Broken(
            f"{name}: column '{column}' is stored and no longer declared: declare it again, its new rows may be NULL, "
            f"or {ANEW}",
            "SCHEMA_CHANGED",
        )
    for field in schema:
        kind = field.dataType.simpleString()
        if stored.get(field.name, kind) != kind:
            raise Broken(
                f"{name}: column '{field.name}' is stored as {stored[field.name].upper()} and declared "
                f"{kind.upper()}: declare it as it is stored, and the new type as a column of its own, or {ANEW}",
                "SCHEMA_CHANGED",
            )
    new = StructType([field for field in schema if field.name not in stored])
    if new:
        alter(f"ALTER TABLE {name} ADD COLUMNS ({new.toDDL()})")


def _create(
    spark: SparkSession,
    name: str,
    schema: StructType,
    comment: str,
    properties: dict[str, str],
    cluster_by: Sequence[str] = (),
    partition_by: Sequence[str] = (),
) -> None:
    where = settings().table_path(name)
    builder = DeltaTable.createIfNotExists(spark).location(str(where)).comment(comment).addColumns(schema)
    for key, value in properties.items():
        builder = builder.property(key, value)
    if cluster_by:
        builder = builder.clusterBy(*cluster_by)
    if partition_by:
        builder = builder.partitionedBy(*partition_by)
    builder.execute()
    register(spark, name)
