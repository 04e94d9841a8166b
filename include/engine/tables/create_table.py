"""Creates Delta tables from their declarations, and changes stored ones to them."""

import json
import math
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from delta.tables import DeltaTable
from deltalake import DeltaTable as Log
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType

from include import logs
from include.delta import stored_table
from include.engine import commit, sql_text, struct_type
from include.engine.fast_path import path
from include.engine.rows import merge_changes, transform
from include.engine.rows.merge_changes import DELETED, TRUNCATES
from include.engine.session import register
from include.errors import FlowBroken
from include.lake import locations
from include.project.sources import CHANGE_FEED_PROPERTY
from include.spec import Table, ddl
from include.spec.origin import FAILED_REASON, FAILED_RECORD

OWNER, SET = "sluice.owner", "sluice.properties"
# The change feed stays on once it is on: a gap would break its readers.
FOR_GOOD = {CHANGE_FEED_PROPERTY}
# A full refresh that died has left it off.
ALWAYS = {"delta.appendOnly"}
# Older tables get these defaults too, unless somebody has set another value by hand.
WHERE_MISSING = {"delta.checkpointInterval"}
# The table feature of clustering. delta-rs does not read the clustering columns.
CLUSTERING = "clustering"
# Raised for a log, feature or type that delta-rs does not support.
UNREADABLE_LOG_ERRORS = (DeltaError, OSError, ValueError, KeyError, PySparkException)


def properties_of(table: Table) -> dict[str, str]:
    """Returns the declared properties. `sluice.properties` holds their names, so that removed ones are recognized."""
    declared = dict(table.properties)
    if table.owner:
        declared[OWNER] = table.owner
    return {**declared, SET: json.dumps(sorted(declared))} if declared else {}


def is_followed(table: Table, schema: StructType, defaults: dict[str, str], may_have_more: bool) -> bool:
    """Whether the stored table matches its declaration, by its log alone; False also if the log cannot tell.

    schema: as declared. defaults: properties without a declaration. may_have_more: undeclared columns may be stored.
    Reading the log takes milliseconds, whereas Spark in a new JVM takes seconds.
    """
    try:
        log = stored_table.open_table(table.name)
        metadata, stored_columns = log.metadata(), _columns(_schema(log))
        is_clustered = CLUSTERING in (log.protocol().writer_features or [])
        changes = _changes(table, defaults, metadata.configuration, metadata.description or "")
    except UNREADABLE_LOG_ERRORS:
        return False
    declared_columns = _columns(schema)
    return (
        not any(changes)
        and {name: column for name, column in stored_columns.items() if name in declared_columns or not may_have_more}
        == declared_columns
        and list(metadata.partition_columns) == list(table.partition_by)
        and not (table.cluster_by or is_clustered)
    )


def has_columns(name: str, schema: StructType) -> bool:
    """Whether the stored table has exactly these columns; False also if its log cannot tell."""
    try:
        stored = _types(_schema(stored_table.open_table(name)))
    except UNREADABLE_LOG_ERRORS:
        return False
    return stored == _types(schema)


def required_columns(name: str) -> list[str]:
    """Returns the columns of a stored table that may not be NULL, dotted if they are nested."""
    try:
        return list(_required(_schema(stored_table.open_table(name)), ""))
    except UNREADABLE_LOG_ERRORS:
        return []


def _required(schema: StructType, prefix: str) -> Iterator[str]:
    for field in schema:
        if not field.nullable:
            yield f"{prefix}{field.name}"
        if isinstance(field.dataType, StructType):
            yield from _required(field.dataType, f"{prefix}{field.name}`.`")


def filled_columns(name: str, known: Sequence[str]) -> list[str]:
    """Returns the stored columns other than the known ones, if the statistics of the files show values in them."""
    try:
        log = stored_table.open_table(name)
        others = [field.name for field in _schema(log) if field.name not in known]
        actions = pa.table(log.get_add_actions(flatten=True)) if others else None
    except UNREADABLE_LOG_ERRORS:
        return []
    if actions is None or not len(actions):
        return []
    rows = actions.column("num_records").to_pylist()
    counts = [f"null_count.{name}" for name in others if f"null_count.{name}" in actions.column_names]
    return others if any(actions.column(count).to_pylist() != rows for count in counts) else []


def follow(spark: SparkSession, table: Table, defaults: dict[str, str], alter: Callable[[str], object]) -> None:
    """Alters what differs between the stored table and its declaration. defaults: properties without a declaration.

    alter: runs the statements. Raises FlowBroken if the table is partitioned differently.
    """
    stored = DeltaTable.forPath(spark, str(locations.table_path(table.name)))
    detail = stored.detail().first()
    assert detail
    _check_partitioning(table, detail["partitionColumns"])
    _set_properties(table, defaults, detail["properties"], detail["description"] or "", alter)
    _comment_columns(table, stored.toDF().schema, alter)
    if list(detail["clusteringColumns"]) != list(table.cluster_by):
        columns = ", ".join(f"`{name}`" for name in table.cluster_by)
        alter(f"ALTER TABLE {table.name} CLUSTER BY {f'({columns})' if columns else 'NONE'}")


def _check_partitioning(table: Table, stored: Sequence[str]) -> None:
    if list(stored) != list(table.partition_by):
        raise FlowBroken(
            f"{table.name}: it is stored partitioned by {', '.join(stored) or 'nothing'} and declared partitioned by "
            f"{', '.join(table.partition_by) or 'nothing'}: declare it as it is stored, give the new one a name of its "
            f"own, or rebuild the whole table (jobs/backfill.py --full)",
            "SCHEMA_CHANGED",
        )


def _schema(log: Log) -> StructType:
    return StructType.fromJson(json.loads(log.schema().to_json()))


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema}


def _columns(schema: StructType) -> dict[str, tuple[str, str]]:
    """Returns type and comment of each column."""
    return {field.name: (field.dataType.simpleString(), field.metadata.get("comment", "")) for field in schema}


def _changes(
    table: Table, defaults: dict[str, str], stored: dict[str, str], comment: str
) -> tuple[dict[str, str], list[str]]:
    """Returns the properties to set, and the names of those to unset."""
    set_before = json.loads(stored.get(SET, "[]"))
    keys = {*set_before, *ALWAYS, *(WHERE_MISSING - stored.keys())}
    declared = {key: defaults[key] for key in keys if key in defaults} | properties_of(table)
    to_set = {key: value for key, value in declared.items() if stored.get(key) != value}
    if comment != table.comment:
        to_set["comment"] = table.comment
    return to_set, sorted({*set_before, SET} & set(stored) - set(declared) - FOR_GOOD)


def _set_properties(
    table: Table, defaults: dict[str, str], stored: dict[str, str], comment: str, alter: Callable[[str], object]
) -> None:
    changed, removed = _changes(table, defaults, stored, comment)
    if changed:
        alter(f"ALTER TABLE {table.name} SET TBLPROPERTIES ({sql_text.properties(changed)})")
    if removed:
        names = ", ".join(sql_text.literal(key) for key in removed)
        alter(f"ALTER TABLE {table.name} UNSET TBLPROPERTIES ({names})")


def _comment_columns(table: Table, stored: StructType, alter: Callable[[str], object]) -> None:
    stored_comments = {field.name: field.metadata.get("comment", "") for field in stored}
    for field in struct_type.from_ddl(table.schema):
        comment = field.metadata.get("comment", "")
        if stored_comments.get(field.name, "") != comment:
            column = sql_text.identifier(field.name)
            alter(f"ALTER TABLE {table.name} ALTER COLUMN {column} COMMENT {sql_text.literal(comment)}")


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
    is_small = any(map(path.suits, table.flows))
    return PROPERTIES | retention(table.maintain.retention_seconds) | (SELDOM_CHECKPOINTS if is_small else {})


def create(spark: SparkSession, table: Table, alter: Callable[[str], object] | None = None) -> None:
    """Creates the table and its quarantine if it needs one; adds missing columns to existing ones.

    alter: runs the DDL for a stored table. By default the session runs it, which suits callers that hold the table
    alone. Raises FlowBroken if the stored table cannot be changed to its declaration.
    """
    alter = _announced(table, alter or (lambda statement: spark.sql(statement)))
    properties = _properties(table)
    if table.write.appends:
        # Rows of bronze never change; backfills replace rows of other tables.
        properties["delta.appendOnly"] = "true" if table.layer == "bronze" else "false"
    schema = struct_type.from_ddl(table.schema)
    if table.layer == "bronze" and set(KAFKA_PLACE) < set(schema.fieldNames()):
        # Keeps statistics of the payload, which are useless, from being computed.
        properties["delta.dataSkippingStatsColumns"] = ",".join(dict.fromkeys((*KAFKA_PLACE, *table.cluster_by)))
    is_of_files = table.reads_files
    declared_properties = {**properties, **properties_of(table)}
    if locations.is_stored(table.name):
        commit.require_own(table)
        if not is_followed(table, schema, properties, may_have_more=is_of_files):
            _evolve(spark, table.name, schema, alter, may_have_more=is_of_files)
            follow(spark, table, properties, alter)
    else:
        _create(spark, table.name, schema, table.comment, declared_properties, table.cluster_by, table.partition_by)
    # An existing quarantine stays in use: an earlier try of a batch may have left rows in it under other rules.
    if table.has_quarantine or locations.is_stored(table.quarantine):
        _create_quarantine(spark, table, alter)
    if table.merges_changes:
        _create_retained(spark, table, alter)


def _announced(table: Table, alter: Callable[[str], object]) -> Callable[[str], object]:
    """Logs each statement before it runs: it changes a stored table, for a new declaration or a newer build."""

    def announce(statement: str) -> None:
        logs.info(f"what is stored is changed: {statement}", table.name)
        alter(statement)

    return announce


def _create_retained(spark: SparkSession, table: Table, alter: Callable[[str], object]) -> None:
    names = transform.names_of_retained(table)
    columns = [field for field in _columns_of_rows(table) if field.name in names]
    schema = StructType([*columns, *struct_type.from_ddl(BATCH_SCHEMA)])
    _drop_not_null(table.retained, alter)
    if not locations.is_stored(table.retained):
        comment = f"Changes that no row of {table.name} shows, and that decide what later changes do"
        _create(spark, table.retained, schema, comment, _properties(table))
        return
    if not has_columns(table.retained, schema):
        # Older releases have stored whole rows.
        _evolve(spark, table.retained, schema, alter, may_have_more=True)
    surplus = filled_columns(table.retained, schema.fieldNames())
    if surplus:
        values = ", ".join(f"`{name}` = NULL" for name in surplus)
        alter(f"UPDATE {sql_text.delta(locations.table_path(table.retained))} SET {values}")


def _columns_of_rows(table: Table) -> list[StructField]:
    """Returns the columns of the rows that a batch writes into companions of the table. Each may be NULL there."""
    if table.reads_files:
        return list(struct_type.from_ddl(FILE_SCHEMA))
    columns = list(struct_type.from_ddl(table.schema).toNullable())
    if not table.merges_changes:
        return columns
    computed = ddl.columns(table.computed_schema) if table.computed_schema else []
    flags = struct_type.from_ddl(", ".join(FLAGS_SCHEMA[name] for name in merge_changes.flags(table.write)))
    return [*(field for field in columns if field.name not in computed), *flags]


def create_quarantine(spark: SparkSession, table: Table, alter: Callable[[str], object]) -> None:
    """Creates the quarantine alone, or adds missing columns to it."""
    _create_quarantine(spark, table, _announced(table, alter))


def _create_quarantine(spark: SparkSession, table: Table, alter: Callable[[str], object]) -> None:
    is_of_files = table.reads_files
    added = f"{RULES_SCHEMA}, {BATCH_SCHEMA}" + ("" if is_of_files else f", {FAILED_SCHEMA}")
    schema = StructType([*_columns_of_rows(table), *struct_type.from_ddl(added)])
    _drop_not_null(table.quarantine, alter)
    if locations.is_stored(table.quarantine):
        if not has_columns(table.quarantine, schema):
            _evolve(spark, table.quarantine, schema, alter)
        return
    comment = f"{'Files that are not in' if is_of_files else 'Rows that broke a rule of'} {table.name}"
    _create(spark, table.quarantine, schema, comment, _properties(table))


def replace(rows: DataFrame, table: Table) -> None:
    """Replaces all rows of the table by these, with declared layout and properties, in one commit. rows: in the
    declared columns.

    Between `create` and an overwrite, a reader would see an empty table.
    """
    properties = _properties(table) | properties_of(table)
    pairs = sql_text.properties(properties)
    # DataFrameWriter cannot cluster a Delta table.
    layout = "CLUSTER BY" if table.cluster_by else "PARTITIONED BY"
    columns = ", ".join(map(sql_text.identifier, table.cluster_by or table.partition_by))
    rows.createOrReplaceTempView(NEW)
    try:
        rows.sparkSession.sql(
            f"CREATE OR REPLACE TABLE {sql_text.delta(locations.table_path(table.name))} USING delta "
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
    if required := next((field.name for field in new_columns if _has_required(field)), None):
        raise FlowBroken(
            f"{name}: column '{required}' is new and NOT NULL, or a field of it is, and stored rows hold NULL there: "
            f"declare it without NOT NULL, and a rule for its values (not_null), or {ANEW}",
            "SCHEMA_CHANGED",
        )
    if new_columns:
        for feature in sorted({feature for word, feature in FEATURES.items() if word in new_columns.simpleString()}):
            alter(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.feature.{feature}' = 'supported')")
        alter(f"ALTER TABLE {name} ADD COLUMNS ({new_columns.toDDL()})")


def _has_required(field: StructField) -> bool:
    """Whether the column, or a field within it, is NOT NULL."""
    column = StructType([field])
    return bool(column != column.toNullable())


def _drop_not_null(name: str, alter: Callable[[str], object]) -> None:
    """Lets the columns of a stored companion be NULL: it takes the rows that its table refuses."""
    if locations.is_stored(name):
        for column in required_columns(name):
            path = sql_text.delta(locations.table_path(name))
            alter(f"ALTER TABLE {path} ALTER COLUMN {sql_text.identifier(column)} DROP NOT NULL")


def _create(
    spark: SparkSession,
    name: str,
    schema: StructType,
    comment: str,
    properties: dict[str, str],
    cluster_by: Sequence[str] = (),
    partition_by: Sequence[str] = (),
) -> None:
    location = locations.table_path(name)
    builder = DeltaTable.createIfNotExists(spark).location(str(location)).comment(comment).addColumns(schema)
    for key, value in properties.items():
        builder = builder.property(key, value)
    if cluster_by:
        builder = builder.clusterBy(*cluster_by)
    if partition_by:
        builder = builder.partitionedBy(*partition_by)
    builder.execute()
    register(spark, name)
