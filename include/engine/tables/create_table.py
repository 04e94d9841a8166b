"""Creates Delta tables from their declarations."""

import math
from collections.abc import Callable, Sequence

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from include.engine import sql_text, struct_type
from include.engine.batch import merge_changes, table_rows
from include.engine.batch.merge_changes import DELETED, TRUNCATES
from include.engine.fast_path import path
from include.engine.session import register
from include.engine.tables import foreign_table, table_properties
from include.errors import FlowBroken
from include.settings import settings
from include.spec import Append, Files, Table, Upsert, ddl
from include.spec.origin import FAILED_REASON, FAILED_RECORD

PROPERTIES = {
    # A writer's log clean-up could delete a version that a stream has yet to read.
    "delta.enableExpiredLogCleanup": "false",
}

# Delta replays the log in Spark for each checkpoint, at the cost of ten small batches of the fast path. Spark's own
# writers replay it for each batch, so their tables keep Delta's default of ten commits.
SELDOM_CHECKPOINTS = {"delta.checkpointInterval": "100"}

# Delta requires the log to be kept at least as long as deleted files. Sluice cleans the log itself, in windows.
LOG_SECONDS = 30 * 86_400

# Columns by which Kafka records are looked up.
KAFKA_PLACE = ("timestamp", "partition", "offset")

# Features that a stored table needs before a column of the type is added.
FEATURES = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}

# The remedy when a stored table cannot be changed to its declaration.
ANEW = "rebuild the whole table (jobs/backfill.py --full)"

# The temporary view in a statement that replaces a table.
NEW = "_new_rows"

# Columns of the companions of a table about the batch that wrote a row.
BATCH_SCHEMA = """
    _flow STRING COMMENT 'the flow that read it',
    _generation INT COMMENT 'generation of that flow''s checkpoint',
    _batch BIGINT COMMENT 'batch of that generation',
    _source STRING COMMENT 'JSON: where the batch ends in its source',
    _replay BIGINT COMMENT 'the replay that is about to put the row into the table'
"""
RULES_SCHEMA = "_rules ARRAY<STRING> COMMENT 'the expectations it broke'"
# Columns of a quarantine for rows of the source of which no row of the table could be made, or none that can be stored.
FAILED_SCHEMA = f"""
    {FAILED_REASON} STRING COMMENT 'why no row could be made of a row of the source',
    {FAILED_RECORD} STRING COMMENT 'JSON: that row of the source, or the row that cannot be stored'
"""
FLAGS_SCHEMA = {
    DELETED: "_deleted BOOLEAN COMMENT 'whether the change deletes its key; NULL for a tombstone'",
    TRUNCATES: "_truncates BOOLEAN COMMENT 'whether the change deletes all keys'",
}

# Columns of the quarantine of a table of files: one row for each unreadable file.
FILE_SCHEMA = """
    _filename STRING COMMENT 'the file, below the folder of the source',
    length BIGINT COMMENT 'its bytes, NULL where it was gone',
    modification_time TIMESTAMP COMMENT 'its date, NULL where it was gone',
    _reason STRING COMMENT 'why it is not in the table as it lies there'
"""


def retention(seconds: float) -> dict[str, str]:
    """Returns the properties by which VACUUM keeps files deleted in the last `seconds`. VACUUM ignores anything
    else.
    """
    return {
        "delta.deletedFileRetentionDuration": f"interval {math.ceil(seconds)} seconds",
        "delta.logRetentionDuration": f"interval {max(math.ceil(seconds), LOG_SECONDS)} seconds",
    }


def _properties(table: Table) -> dict[str, str]:
    """Returns the properties of the table and of its quarantine."""
    return PROPERTIES | retention(table.maintain.retention_seconds) | (SELDOM_CHECKPOINTS if path.suits(table) else {})


def create(spark: SparkSession, table: Table, alter: Callable[[str], object] | None = None) -> None:
    """Creates the table and its quarantine if it needs one; adds missing columns to existing ones.

    alter: runs the DDL for a stored table. By default the session runs it, which suits callers that hold the table
    alone. Raises FlowBroken if the stored table cannot be changed to its declaration.
    """
    alter = alter or (lambda statement: spark.sql(statement))
    properties = _properties(table)
    if isinstance(table.write, Append):
        # Rows of bronze never change; backfills replace rows of other tables.
        properties["delta.appendOnly"] = "true" if table.layer == "bronze" else "false"
    schema = struct_type.from_ddl(table.schema)
    if table.layer == "bronze" and set(KAFKA_PLACE) < set(schema.fieldNames()):
        # Keeps statistics of the payload, which are useless, from being computed.
        properties["delta.dataSkippingStatsColumns"] = ",".join(dict.fromkeys((*KAFKA_PLACE, *table.cluster_by)))
    is_of_files = isinstance(table.source, Files)
    declared_properties = {**properties, **table_properties.properties(table)}
    if settings().is_stored(table.name):
        foreign_table.require_own(table)
        if not table_properties.is_followed(table, schema, properties, may_have_more=is_of_files):
            _evolve(spark, table.name, schema, alter, may_have_more=is_of_files)
            table_properties.follow(spark, table, properties, alter)
    else:
        _create(spark, table.name, schema, table.comment, declared_properties, table.cluster_by, table.partition_by)
    # An existing quarantine stays in use: an earlier try of a batch may have left rows in it under other rules.
    if table.has_quarantine or settings().is_stored(table.quarantine):
        create_quarantine(spark, table, alter)
    if table.merges_changes:
        _create_retained(spark, table, alter)


def _create_retained(spark: SparkSession, table: Table, alter: Callable[[str], object]) -> None:
    names = table_rows.names_of_retained(table)
    columns = [field for field in _columns_of_rows(table) if field.name in names]
    schema = StructType([*columns, *struct_type.from_ddl(BATCH_SCHEMA)])
    _drop_not_null(table.retained, alter)
    if not settings().is_stored(table.retained):
        comment = f"Changes that no row of {table.name} shows, and that decide what later changes do"
        _create(spark, table.retained, schema, comment, _properties(table))
        return
    if not table_properties.has_columns(table.retained, schema):
        # Older releases have stored whole rows.
        _evolve(spark, table.retained, schema, alter, may_have_more=True)
    surplus = table_properties.filled_columns(table.retained, schema.fieldNames())
    if surplus:
        values = ", ".join(f"`{name}` = NULL" for name in surplus)
        alter(f"UPDATE {sql_text.delta(settings().table_path(table.retained))} SET {values}")


def _columns_of_rows(table: Table) -> list[StructField]:
    """Returns the columns of the rows that a batch writes into companions of the table. Each may be NULL there."""
    if isinstance(table.source, Files):
        return list(struct_type.from_ddl(FILE_SCHEMA))
    columns = list(struct_type.from_ddl(table.schema).toNullable())
    if not isinstance(table.write, Upsert) or not table.merges_changes:
        return columns
    computed = ddl.columns(table.computed_schema) if table.computed_schema else []
    flags = struct_type.from_ddl(", ".join(FLAGS_SCHEMA[name] for name in merge_changes.flags(table.write)))
    return [*(field for field in columns if field.name not in computed), *flags]


def create_quarantine(spark: SparkSession, table: Table, alter: Callable[[str], object]) -> None:
    """Creates the quarantine alone, or adds missing columns to it."""
    is_of_files = isinstance(table.source, Files)
    added = f"{RULES_SCHEMA}, {BATCH_SCHEMA}" + ("" if is_of_files else f", {FAILED_SCHEMA}")
    schema = StructType([*_columns_of_rows(table), *struct_type.from_ddl(added)])
    _drop_not_null(table.quarantine, alter)
    if settings().is_stored(table.quarantine):
        if not table_properties.has_columns(table.quarantine, schema):
            _evolve(spark, table.quarantine, schema, alter)
        return
    comment = f"{'Files that are not in' if is_of_files else 'Rows that broke a rule of'} {table.name}"
    _create(spark, table.quarantine, schema, comment, _properties(table))


def replace(rows: DataFrame, table: Table) -> None:
    """Replaces all rows of the table by these, with declared schema, layout and properties, in one commit.

    Between `create` and an overwrite, a reader would see an empty table.
    """
    schema = struct_type.from_ddl(table.schema)
    properties = _properties(table) | table_properties.properties(table)
    pairs = sql_text.properties(properties)
    # DataFrameWriter cannot cluster a Delta table.
    layout = "CLUSTER BY" if table.cluster_by else "PARTITIONED BY"
    columns = ", ".join(map(sql_text.identifier, table.cluster_by or table.partition_by))
    rows.to(schema).createOrReplaceTempView(NEW)
    try:
        rows.sparkSession.sql(
            f"CREATE OR REPLACE TABLE {sql_text.delta(settings().table_path(table.name))} USING delta "
            f"{f'{layout} ({columns})' if columns else ''} COMMENT {sql_text.literal(table.comment)} "
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
    """Adds declared columns that are not stored; older rows hold NULL there. Raises FlowBroken.

    may_have_more: undeclared columns, which files have added, may stay.
    """
    register(spark, name)
    stored = {field.name: field.dataType.simpleString() for field in spark.table(name).schema}
    for column in set() if may_have_more else stored.keys() - set(schema.fieldNames()):
        raise FlowBroken(
            f"{name}: column '{column}' is stored and no longer declared: declare it again, its new rows may be NULL, "
            f"or {ANEW}",
            "SCHEMA_CHANGED",
        )
    for field in schema:
        type_ = field.dataType.simpleString()
        if stored.get(field.name, type_) != type_:
            raise FlowBroken(
                f"{name}: column '{field.name}' is stored as {stored[field.name].upper()} and declared "
                f"{type_.upper()}: declare it as it is stored, and the new type as a column of its own, or {ANEW}",
                "SCHEMA_CHANGED",
            )
    new_columns = StructType([field for field in schema if field.name not in stored])
    if required := next((field.name for field in new_columns if not field.nullable), None):
        raise FlowBroken(
            f"{name}: column '{required}' is new and NOT NULL, and stored rows hold NULL there: declare it without "
            f"NOT NULL, and a rule for its values (not_null), or {ANEW}",
            "SCHEMA_CHANGED",
        )
    if new_columns:
        for feature in sorted({feature for word, feature in FEATURES.items() if word in new_columns.simpleString()}):
            alter(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.feature.{feature}' = 'supported')")
        alter(f"ALTER TABLE {name} ADD COLUMNS ({new_columns.toDDL()})")


def _drop_not_null(name: str, alter: Callable[[str], object]) -> None:
    """Lets the columns of a stored companion be NULL: it takes the rows that its table refuses."""
    if settings().is_stored(name):
        for column in table_properties.required_columns(name):
            alter(f"ALTER TABLE delta.`{settings().table_path(name)}` ALTER COLUMN `{column}` DROP NOT NULL")


def _create(
    spark: SparkSession,
    name: str,
    schema: StructType,
    comment: str,
    properties: dict[str, str],
    cluster_by: Sequence[str] = (),
    partition_by: Sequence[str] = (),
) -> None:
    location = settings().table_path(name)
    builder = DeltaTable.createIfNotExists(spark).location(str(location)).comment(comment).addColumns(schema)
    for key, value in properties.items():
        builder = builder.property(key, value)
    if cluster_by:
        builder = builder.clusterBy(*cluster_by)
    if partition_by:
        builder = builder.partitionedBy(*partition_by)
    builder.execute()
    register(spark, name)
