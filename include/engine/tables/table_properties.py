"""Brings a stored table to what its file says of it: comments, owner, properties, clustering."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from delta.tables import DeltaTable
from deltalake import DeltaTable as Log
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from include.errors import Broken
from include.settings import settings
from include.spec import Table
from include.validation.delta_sources import FEED

OWNER, SET = "sluice.owner", "sluice.properties"
# Once its changes are kept they are kept on: a reader that was away for a while would find a hole.
FOR_GOOD = {FEED}
# A full refresh that died has left it switched off.
ALWAYS = {"delta.appendOnly"}
# A table that is older than the default gets it, too, unless somebody has set another value by hand.
WHERE_MISSING = {"delta.checkpointInterval"}
# Delta keeps the columns in its log where delta-rs does not look.
CLUSTERING = "clustering"
# Of a log, or a feature or type in it, that delta-rs does not know.
UNREADABLE = (DeltaError, OSError, ValueError, KeyError, PySparkException)


def properties(table: Table) -> dict[str, str]:
    """What its file sets, and in `sluice.properties` their names, so that one it no longer sets can be told."""
    said = dict(table.properties)
    if table.owner:
        said[OWNER] = table.owner
    return {**said, SET: json.dumps(sorted(said))} if said else {}


def is_followed(table: Table, schema: StructType, own: dict[str, str], may_have_more: bool) -> bool:
    """Whether nothing differs in a table that is stored, told from its log alone; False also where that cannot tell.

    schema: as it is declared. own: the properties it has where its file says nothing. may_have_more: stored columns
    that nobody declared. Spark's own look at a table takes seconds in a JVM that has just started.
    """
    try:
        log = Log(str(settings().table_path(table.name)))
        metadata, was = log.metadata(), _columns(_schema(log))
        is_clustered = CLUSTERING in (log.protocol().writer_features or [])
        changes = _changes(table, own, metadata.configuration, metadata.description or "")
    except UNREADABLE:
        return False
    wanted = _columns(schema)
    return (
        not any(changes)
        and {name: column for name, column in was.items() if name in wanted or not may_have_more} == wanted
        and list(metadata.partition_columns) == list(table.partition_by)
        and not (table.cluster_by or is_clustered)
    )


def has_columns(path: Path, schema: StructType) -> bool:
    """Whether the stored table has these columns and no others; False also where its log alone cannot tell."""
    try:
        stored = _types(_schema(Log(str(path))))
    except UNREADABLE:
        return False
    return stored == _types(schema)


def follow(spark: SparkSession, table: Table, own: dict[str, str], alter: Callable[[str], object]) -> None:
    """Alter what differs in a table that is stored. own: the properties it has where its file says nothing.

    alter: runs the statements. Raises Broken where it is partitioned otherwise.
    """
    stored = DeltaTable.forPath(spark, str(settings().table_path(table.name)))
    detail = stored.detail().first()
    _check_partitioning(table, detail["partitionColumns"])
    _set_properties(table, own, detail["properties"], detail["description"] or "", alter)
    _comment_columns(table, stored.toDF().schema, alter)
    if list(detail["clusteringColumns"]) != list(table.cluster_by):
        columns = ", ".join(f"`{name}`" for name in table.cluster_by)
        alter(f"ALTER TABLE {table.name} CLUSTER BY {f'({columns})' if columns else 'NONE'}")


def _check_partitioning(table: Table, stored: Sequence[str]) -> None:
    if list(stored) != list(table.partition_by):
        raise Broken(
            f"{table.name}: it is stored partitioned by {', '.join(stored) or 'nothing'} and declared partitioned by "
            f"{', '.join(table.partition_by) or 'nothing'}: declare it as it is stored, give the new one a name of its "
            f"own, or make all of it anew (jobs/backfill.py --full)",
            "SCHEMA_CHANGED",
        )


def _schema(log: Log) -> StructType:
    return StructType.fromJson(json.loads(log.schema().to_json()))


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema}


def _columns(schema: StructType) -> dict[str, tuple[str, str]]:
    """By name, type and comment."""
    return {field.name: (field.dataType.simpleString(), field.metadata.get("comment", "")) for field in schema}


def _changes(
    table: Table, own: dict[str, str], stored: dict[str, str], comment: str
) -> tuple[dict[str, str], list[str]]:
    """Those to set, by name, and the names of those to take away."""
    set_before = json.loads(stored.get(SET, "[]"))
    defaults = {*set_before, *ALWAYS, *(WHERE_MISSING - stored.keys())}
    wanted = {key: own[key] for key in defaults if key in own} | properties(table)
    changed = {key: value for key, value in wanted.items() if stored.get(key) != value}
    if comment != table.comment:
        changed["comment"] = table.comment
    return changed, sorted({*set_before, SET} & set(stored) - set(wanted) - FOR_GOOD)


def _set_properties(
    table: Table, own: dict[str, str], stored: dict[str, str], comment: str, alter: Callable[[str], object]
) -> None:
    changed, gone = _changes(table, own, stored, comment)
    if changed:
        pairs = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in changed.items())
        alter(f"ALTER TABLE {table.name} SET TBLPROPERTIES ({pairs})")
    if gone:
        names = ", ".join(literal(key) for key in gone)
        alter(f"ALTER TABLE {table.name} UNSET TBLPROPERTIES ({names})")


def _comment_columns(table: Table, stored: StructType, alter: Callable[[str], object]) -> None:
    was = {field.name: field.metadata.get("comment", "") for field in stored}
    for field in StructType.fromDDL(table.schema):
        comment = field.metadata.get("comment", "")
        if was.get(field.name, "") != comment:
            alter(f"ALTER TABLE {table.name} ALTER COLUMN `{field.name}` COMMENT {literal(comment)}")


def literal(value: str) -> str:
    """As a SQL literal."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
