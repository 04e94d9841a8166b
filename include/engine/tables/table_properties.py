"""Changes a stored table to its declaration: comments, owner, properties, clustering."""

import json
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from delta.tables import DeltaTable
from deltalake import DeltaTable as Log
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.delta import stored_table
from include.engine import sql_text, struct_type
from include.errors import FlowBroken
from include.project.sources import CHANGE_FEED_PROPERTY
from include.settings import settings
from include.spec import Table

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


def properties(table: Table) -> dict[str, str]:
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
    stored = DeltaTable.forPath(spark, str(settings().table_path(table.name)))
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
    declared = {key: defaults[key] for key in keys if key in defaults} | properties(table)
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
