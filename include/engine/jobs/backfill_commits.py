"""Replaces a range in a table, in its quarantine and in its retained changes, in one commit each."""

from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.control.jobs.backfills import Backfill
from include.engine import commit, struct_type
from include.engine.commit import read_table
from include.engine.jobs import replay
from include.engine.jobs.backfill_rows import condition
from include.engine.jobs.left_out import LeftOut
from include.engine.rows import merge_changes, storable, transform
from include.engine.rows.merge_changes import RETAINED, SHOWN
from include.flows.batches import BACKFILL
from include.lake import locations
from include.project.ranges import Slice
from include.recovery import backfill
from include.spec import Table, Upsert


@dataclass(frozen=True)
class Commits:
    """What the commits of one backfill of a table have in common.

    metadata: `userMetadata` of the window's commits. last: for each flow, the metadata of the commit up to which its
    source was read.
    """

    table: Table
    job: Backfill
    metadata: dict[str, Any]
    last: dict[str, dict[str, Any]]

    @property
    def replaced(self) -> str:
        """A SQL condition for the rows of the range."""
        return condition(self.table, self.job)

    def metadata_of(self, rows_before: int, **more: Any) -> dict[str, Any]:
        """Returns the `userMetadata` of a commit. rows_before: how many rows it replaces."""
        return {**self.metadata, BACKFILL: {**commit_metadata(self.job, rows_before), **more}}


def replace_quarantine(rows: DataFrame, left_out: LeftOut, commits: Commits) -> None:
    """Replaces the range in the quarantine; the new rows carry the newest batch of their flow.

    rows: that break rules, with `_flow`. left_out: more rows, and which others these replace.
    """
    table, spark = commits.table, rows.sparkSession
    parts = [
        commit.with_batch_columns(rows.filter(F.col("_flow") == flow), last) for flow, last in commits.last.items()
    ]
    parts = [storable.for_quarantine(reduce(DataFrame.unionByName, parts))]
    parts += [commit.with_batch_columns(failed, commits.last[flow]) for flow, failed in left_out.failed.items()]
    rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), parts)
    replaced = left_out.condition(commits.replaced)
    # Rows of a batch that has not committed do not count: its next try counts and writes them again.
    count = read_table(spark, table.quarantine).filter(replaced).filter(replay.is_committed(table)).count()
    with commit.user_metadata(spark, commits.metadata_of(count), {}):
        _replace(rows.coalesce(1), table.quarantine, replaced)


def replace_left_out(spark: SparkSession, left_out: LeftOut, commits: Commits) -> None:
    """Replaces what the range of an aggregate has in the quarantine: source rows, and buckets that keep their rows."""
    table, is_whole = commits.table, commits.job.range == Slice()
    if not is_whole and not left_out.superseded:
        return
    flow = table.single_flow.flow
    failed = left_out.failed.get(flow)
    rows = read_table(spark, table.quarantine).limit(0) if failed is None else failed
    with commit.user_metadata(spark, commits.metadata, {}):
        rows = commit.with_batch_columns(rows, commits.last[flow])
        _replace(rows.coalesce(1), table.quarantine, left_out.condition("true" if is_whole else "false"))


def replace_retained(changes: DataFrame, write: Upsert, commits: Commits) -> DataFrame:
    """Merges these changes, replaces the retained ones, and returns the rows of the table.

    changes: all that the flow has read. The retained changes carry the newest batch of the flow.
    """
    table = commits.table
    result = merge_changes.merged(changes.withColumn(RETAINED, F.lit(False)), write).localCheckpoint()
    hidden = result.filter(~F.col(SHOWN)).select(*[f"`{name}`" for name in transform.names_of_retained(table)])
    with commit.user_metadata(changes.sparkSession, commits.metadata_of(0), {}):
        rows = commit.with_batch_columns(hidden, commits.last[table.single_flow.flow])
        _replace(rows.coalesce(1), table.retained, commits.replaced)
    names = struct_type.from_ddl(table.schema).fieldNames()
    return result.filter(SHOWN).select(*[F.col(f"`{name}`") for name in names])


def replace_table(rows: DataFrame, commits: Commits) -> None:
    """Replaces the range in the table."""
    spark, name = rows.sparkSession, commits.table.name
    count = read_table(spark, name).filter(commits.replaced).count()
    positions = {flow: last["source_to"] for flow, last in commits.last.items()}
    once = commit.idempotent_write_conf(backfill.txn_app_id(commits.job), 1)
    with commit.user_metadata(spark, commits.metadata_of(count, position=positions), once):
        _replace(rows, name, commits.replaced)


def commit_metadata(job: Backfill, rows_before: int) -> dict[str, Any]:
    """Returns the `userMetadata` of a backfill's commits. Delta counts the rows after the commit."""
    range_ = dict(zip(("from", "to"), job.range.texts, strict=True))
    made = {"alone": job.alone, "rows_before": rows_before, "definitions": job.definitions}
    return {"number": job.number, "key": job.key, **range_, **made}


def _replace(rows: DataFrame, name: str, replaced: str) -> None:
    """Replaces rows of one Delta table in one commit. replaced: a SQL condition for them."""
    writer = rows.write.format("delta").mode("overwrite")
    writer.option("replaceWhere", replaced).save(str(locations.table_path(name)))
