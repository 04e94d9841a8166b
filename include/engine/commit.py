"""Commits a batch to a Delta table: idempotently, and with metadata."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
)
from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from include import logs
from include.delta import stored_table
from include.errors import FlowBroken
from include.lake import locations
from include.spec import Table, Watermark, table_of


def read_table(spark: SparkSession, name: str, version: int | None = None) -> DataFrame:
    """Returns the rows of a stored table, with the table's columns. version: None for the newest at each query."""
    reader = spark.read.format("delta")
    if version is not None:
        reader = reader.option("versionAsOf", version)
    return reader.load(str(locations.table_path(name)))


def read_newest(spark: SparkSession, name: str) -> DataFrame | None:
    """Returns the stored rows of a table, pinned to its present version; None if it is not stored."""
    return read_table(spark, name, stored_table.open_table(name).version()) if locations.is_stored(name) else None


def read_as_of(spark: SparkSession, name: str, version: int) -> DataFrame:
    """Returns the rows of an old version, in the columns that the table has now. Columns that it lacked are NULL."""
    rows = read_table(spark, name, version)
    added = [field for field in read_table(spark, name).schema.fields if field.name not in rows.columns]
    return rows.withColumns({field.name: F.lit(None).cast(field.dataType) for field in added})


# Every table that Sluice creates has the first. Whoever hands a table over to Sluice sets the second.
OWN, ADOPTED = "delta.enableExpiredLogCleanup", "sluice.adopted"


def require_own(table: Table) -> None:
    """Raises FlowBroken for a stored table with rows that Sluice has not created, and that nobody has handed over."""
    stored = stored_table.open_table(table.name)
    if {OWN, ADOPTED}.isdisjoint(stored.metadata().configuration) and (rows := stored.count()):
        path = locations.table_path(table.name)
        raise FlowBroken(
            f"{table.name}: its place {path} holds a table of {rows:,} rows that Sluice did not create: move it away, "
            f"or hand it over (ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('{ADOPTED}' = 'true')) and restart",
            "FOREIGN_TABLE",
        )


TXN_APP_ID = "spark.databricks.delta.write.txnAppId"
TXN_VERSION = "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

# Conflicts with writers that take no locks, such as an OPTIMIZE by hand. Not with `txnVersion`, which is the fence.
CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentWriteException,
)
TRIES = 10
SAME_KEY = "_same_key"


@dataclass(frozen=True)
class CommitMetadata:
    """The metadata of every commit of a batch, as JSON in Delta's `userMetadata`.

    source: the topics or table. source_from and source_to: the batch's offsets, as in the checkpoint. rows: the batch's
    `include.engine.rows.quality.RowCounts`, if its rows were checked. newest: for a table with a watermark, the
    column's greatest time up to this batch, in microseconds since 1970. fast_path: whether the fast path wrote it.
    lookups: the version of each table that its lookups have read. skipped: by whom and why the batch was left out.
    no_partner: by label of a lookup, how many rows that the batch has read have no partner in its table. suppressed:
    by topic and partition, the offsets of rows that were left out because their subjects were erased.
    """

    flow: str
    generation: int
    batch: int
    epoch: int
    source: dict[str, Any]
    source_from: Any
    source_to: Any
    rows: dict[str, Any] | None = None
    newest: dict[str, int | None] | None = None
    fast_path: bool = False
    lookups: dict[str, int] | None = None
    skipped: dict[str, str] | None = None
    no_partner: dict[str, int] | None = None
    suppressed: dict[str, list[int]] | None = None

    @property
    def txn_app_id(self) -> str:
        """The flow's `txnAppId`. A reset checkpoint needs another: Delta skips a second write of the same (txnAppId,
        batch).
        """
        return txn_app_id(self.flow, self.generation)

    @property
    def text(self) -> str:
        """The commit's `userMetadata`."""
        return json.dumps(asdict(self))

    def reaching(self, watermark: Watermark | None, newest: int | None) -> "CommitMetadata":
        """Returns it with the watermark time up to this batch, for a table that has one."""
        return replace(self, newest={watermark.of: newest}) if watermark else self

    def counting(self, rows: Any, changes: Any = None) -> "CommitMetadata":
        """Returns it with the batch's `include.engine.rows.quality.RowCounts`, and for changes of keys with their
        `include.engine.rows.merge_changes.KeyOutcomes`.
        """
        return replace(self, rows=asdict(rows) | ({"changes": asdict(changes)} if changes else {}))


def txn_app_id(flow: str, generation: int) -> str:
    return f"{flow}/{generation}"


def commit(rows: DataFrame, table: Table, metadata: CommitMetadata, pruning: str = "true") -> None:
    """Writes the batch's rows, with the table's columns, by its write mode. Repeating it changes nothing.

    pruning: a SQL condition that every stored row with a key of this batch meets, so that Delta skips other files.
    """
    spark, write = rows.sparkSession, table.write
    if write.appends:
        execute(lambda: append(rows, table), spark, metadata)
    else:
        rows = _one_of_each(rows, table, write.keys)
        execute(lambda: _merge(spark, rows, table, write.keys, pruning), spark, metadata)


def execute(write: Callable[[], object], spark: SparkSession, metadata: CommitMetadata) -> None:
    """Executes the write of a batch, with its metadata, and once more after a conflict. Repeating it changes
    nothing.
    """
    with user_metadata(spark, asdict(metadata), idempotent_write_conf(metadata.txn_app_id, metadata.batch)):
        for tries_left in reversed(range(TRIES)):
            try:
                write()
                return
            except CONFLICTS as conflict:
                if not tries_left:
                    raise
                logs.warning(f"it conflicted and is retried: {conflict}", metadata.flow, metadata.batch)


def is_written(metadata: CommitMetadata) -> bool:
    """Asks the table whether it holds the batch. That is so if a commit was made and its answer was lost."""
    last_batch = stored_table.open_table(table_of(metadata.flow)).transaction_version(metadata.txn_app_id)
    return last_batch is not None and last_batch >= metadata.batch


def append(rows: DataFrame, table: Table) -> None:
    rows.write.format("delta").mode("append").save(str(locations.table_path(table.name)))


def idempotent_write_conf(app_id: str, version: int) -> dict[str, str]:
    """Returns the session settings that make a write idempotent. MERGE has no writer options for them."""
    return {TXN_APP_ID: app_id, TXN_VERSION: str(version)}


@contextmanager
def user_metadata(spark: SparkSession, metadata: dict[str, Any], conf: Mapping[str, int | str]) -> Iterator[None]:
    """Sets `userMetadata` and `conf` for commits of this session. Each query has its own session."""
    values = {USER_METADATA: json.dumps(metadata), **{key: str(value) for key, value in conf.items()}}
    previous = {key: spark.conf.get(key, None) for key in values}
    for key, value in values.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, previous_value in previous.items():
            spark.conf.unset(key) if previous_value is None else spark.conf.set(key, previous_value)


def _one_of_each(rows: DataFrame, table: Table, keys: tuple[str, ...]) -> DataFrame:
    """Returns these rows; reading them fails if two have the same key. MERGE would insert both."""
    columns = [F.col(f"`{key}`") for key in keys]
    problem = F.concat(
        F.lit(f"the transform of {table.name} makes several rows of the {', '.join(keys)} "),
        F.concat_ws(", ", *[column.cast("string") for column in columns]),
        F.lit(": group by the keys, or add a column to them"),
    )
    is_alone = F.when(F.col(SAME_KEY) > 1, F.raise_error(problem).cast("boolean")).otherwise(F.lit(True))
    counted = rows.withColumn(SAME_KEY, F.count("*").over(Window.partitionBy(*columns)))
    return counted.filter(is_alone).drop(SAME_KEY)


def _merge(spark: SparkSession, rows: DataFrame, table: Table, keys: tuple[str, ...], pruning: str) -> None:
    same_key = " AND ".join(f"stored.`{key}` <=> new.`{key}`" for key in keys)
    values = [column for column in rows.columns if column not in keys]
    changed = " OR ".join(f"NOT (stored.`{column}` <=> new.`{column}`)" for column in values)
    merge = (
        DeltaTable.forPath(spark, str(locations.table_path(table.name)))
        .alias("stored")
        .merge(rows.alias("new"), f"({pruning}) AND {same_key}")
        .whenMatchedUpdateAll(condition=changed or "false")
        .whenNotMatchedInsertAll()
    )
    if any(source.changes for source in table.upstream) or table.write.reach_seconds:
        # A key ends with the last row of its source. Its bucket was touched, and therefore recomputed in full.
        merge = merge.whenNotMatchedBySourceDelete(condition=pruning)
    merge.execute()


def with_batch_columns(rows: DataFrame, metadata: dict[str, Any]) -> DataFrame:
    """Returns `rows` plus the quarantine's columns about the batch. metadata: the fields of `CommitMetadata`."""
    columns = {name: F.lit(value) for name, value in quarantine_columns(metadata).items()}
    for name in ("_batch", "_replay"):
        columns[name] = columns[name].cast("bigint")
    return rows.withColumns(columns)


def quarantine_columns(metadata: dict[str, Any]) -> dict[str, Any]:
    """Returns the quarantine's columns about the batch, with their values."""
    return {
        "_flow": metadata["flow"],
        "_generation": metadata["generation"],
        "_batch": metadata["batch"],
        "_source": json.dumps(metadata["source_to"]),
        "_replay": None,
    }
