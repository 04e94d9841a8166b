"""Replaces a range in a table, in its quarantine and in its retained changes, in one commit each."""

from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.control.jobs.backfills import Backfill
from include.engine import struct_type
from include.engine.batch import merge_changes, storable, table_rows
from include.engine.batch.merge_changes import RETAINED, SHOWN
from include.engine.jobs import replay
from include.engine.jobs.backfill_rows import condition
from include.engine.jobs.left_out import LeftOut
from include.engine.tables import commit
from include.engine.tables.read_table import read_table
from include.flows.batches import BACKFILL
from include.project.ranges import Slice
from include.recovery import backfill
from include.settings import settings
from include.spec import Table, Upsert


def replace_quarantine(
    rows: DataFrame,
    left_out: LeftOut,
    table: Table,
    job: Backfill,
    metadata: dict[str, Any],
    commits: dict[str, dict[str, Any]],
) -> None:
    """Replaces the range in the quarantine; the new rows carry the newest batch of their flow.

    rows: that break rules, with `_flow`. left_out: more rows, and which others these replace.
    """
    parts = [commit.with_batch_columns(rows.filter(F.col("_flow") == flow), newest) for flow, newest in commits.items()]
    parts = [storable.for_quarantine(reduce(DataFrame.unionByName, parts))]
    parts += [commit.with_batch_columns(failed, commits[flow]) for flow, failed in left_out.failed.items()]
    rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
    replaced = left_out.condition(condition(table, job))
    # Rows of a batch that has not committed do not count: its next try counts and writes them again.
    stored = read_table(rows.sparkSession, table.quarantine)
    count = stored.filter(replaced).filter(replay.is_committed(table)).count()
    with commit.user_metadata(rows.sparkSession, {**metadata, BACKFILL: commit_metadata(job, count)}, {}):
        _replace(rows.coalesce(1), table.quarantine, replaced)


def replace_left_out(
    spark: SparkSession,
    left_out: LeftOut,
    table: Table,
    job: Backfill,
    metadata: dict[str, Any],
    commits: dict[str, dict[str, Any]],
) -> None:
    """Replaces what the range of an aggregate has in the quarantine: source rows, and buckets that keep their rows."""
    if job.range != Slice() and not left_out.settled:
        return
    replaced = left_out.condition("true" if job.range == Slice() else "false")
    failed = left_out.failed.get(table.flow)
    rows = read_table(spark, table.quarantine).limit(0) if failed is None else failed
    with commit.user_metadata(rows.sparkSession, metadata, {}):
        _replace(commit.with_batch_columns(rows, commits[table.flow]).coalesce(1), table.quarantine, replaced)


def replace_retained(
    changes: DataFrame,
    table: Table,
    write: Upsert,
    job: Backfill,
    metadata: dict[str, Any],
    commits: dict[str, dict[str, Any]],
) -> DataFrame:
    """Merges these changes, replaces the retained ones, and returns the rows of the table.

    changes: all that the flow has read. The retained changes carry the newest batch of the flow.
    """
    result = merge_changes.merged(changes.withColumn(RETAINED, F.lit(False)), write).localCheckpoint()
    hidden = result.filter(~F.col(SHOWN)).select(*[f"`{name}`" for name in table_rows.names_of_retained(table)])
    with commit.user_metadata(changes.sparkSession, {**metadata, BACKFILL: commit_metadata(job, 0)}, {}):
        rows = commit.with_batch_columns(hidden, commits[table.flow])
        _replace(rows.coalesce(1), table.retained, condition(table, job))
    names = struct_type.from_ddl(table.schema).fieldNames()
    return result.filter(SHOWN).select(*[F.col(f"`{name}`") for name in names])


def replace_table(
    rows: DataFrame, table: Table, job: Backfill, metadata: dict[str, Any], commits: dict[str, dict[str, Any]]
) -> None:
    """Replaces the range in the table."""
    spark = rows.sparkSession
    count = _stored_range(spark, table, table.name, job).count()
    positions = {flow: last_commit["source_to"] for flow, last_commit in commits.items()}
    once = commit.idempotent_write_conf(backfill.txn_app_id(job), 1)
    with commit.user_metadata(
        spark, {**metadata, BACKFILL: {**commit_metadata(job, count), "position": positions}}, once
    ):
        _replace(rows, table.name, condition(table, job))


def commit_metadata(job: Backfill, rows_before: int) -> dict[str, Any]:
    """Returns the `userMetadata` of a backfill's commits. Delta counts the rows after the commit."""
    range_ = dict(zip(("from", "to"), job.range.texts, strict=True))
    made = {"alone": job.alone, "rows_before": rows_before, "definitions": job.definitions}
    return {"number": job.number, "key": job.key, **range_, **made}


def _stored_range(spark: SparkSession, table: Table, name: str, job: Backfill) -> DataFrame:
    return read_table(spark, name).filter(condition(table, job))


def _replace(rows: DataFrame, name: str, replaced: str) -> None:
    """Replaces rows of one Delta table in one commit. replaced: a SQL condition for them."""
    writer = rows.write.format("delta").mode("overwrite")
    writer.option("replaceWhere", replaced).save(str(settings().table_path(name)))
