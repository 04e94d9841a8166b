"""What happens to one micro-batch between its source and its commit."""

import sys
from dataclasses import asdict, dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.engine.batch import data_skipping, deduplicate, prepare, quality, table_rows, tuning, watermark
from include.engine.batch.quality import RowCounts
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.fast_path.features import Refused
from include.engine.fast_path.path import FastPath, TooLarge
from include.engine.files import batch_of_files
from include.engine.tables import commit
from include.engine.tables.commit import CommitMetadata
from include.readers import checkpoint as ledger
from include.readers import offset_ranges
from include.settings import settings
from include.spec import Append, Files, Rule, Table, Upsert


@dataclass
class FlowContext:
    """One flow in one process: its table, its checkpoint and the lease it writes under.

    rows_before: how many rows the batch before had, by which the next one is tuned; 0: nobody knows.
    newest: of a table with a watermark, once it is known, what the next batch's late rows are late by.
    fast_path: what writes its small batches; None where all are written by Spark.
    is_prepared: the rows of its batches come as `include.engine.batch.prepare` makes them.
    """

    table: Table
    checkpoint: Checkpoint
    epoch: int
    rows_before: int = 0
    newest: int | None = None
    fast_path: FastPath | None = None
    is_prepared: bool = False

    def stamp(self, batch: int) -> CommitMetadata:
        source_from = ledger.end_offset(self.checkpoint.path, batch - 1)
        source_to = ledger.end_offset(self.checkpoint.path, batch)
        here = self.checkpoint
        return CommitMetadata(self.table.flow, here.generation, batch, self.epoch, here.source, source_from, source_to)

    def may_have_been_tried(self, batch: int) -> bool:
        """Only the first batch of a life may have been begun by the life before."""
        return batch == self.checkpoint.written + 1

    def left_before(self, batch: int) -> tuple[int, int] | None:
        """Generation and batch behind which an earlier try of this batch may have left broken rows; None: there was
        none.
        """
        return (self.checkpoint.last_commit or (0, 0)) if self.may_have_been_tried(batch) else None


def write(rows: DataFrame, batch: int, life: FlowContext) -> None:
    """Write one batch of a flow. Called again with the same batch, it leaves the tables as after the first time."""
    if batch <= life.checkpoint.written:
        # It has happened. Another rule or transform than at that time must not touch the quarantine any more.
        return
    table, stamp, may_be_replay = life.table, life.stamp(batch), life.may_have_been_tried(batch)
    if not life.is_prepared and prepare.has_no_columns_yet(rows, table) and rows.isEmpty():
        nothing = rows.sparkSession.createDataFrame([], StructType.fromDDL(table.schema))
        commit.commit(nothing, table, replace(stamp, rows=asdict(RowCounts.of([], table.expect))))
        return
    if table.watermark and life.newest is None:
        life.newest = watermark.newest(rows.sparkSession, table)
    if life.fast_path and not isinstance(table.source, Files):
        try:
            written = life.fast_path.write(rows, stamp, life.newest, life.left_before(batch), life.is_prepared)
            life.rows_before, life.newest = written.rows, written.newest
            return
        except Refused as reason:
            life.fast_path.say(reason)
            if isinstance(reason, TooLarge):
                life.rows_before = 0
        except commit.CONFLICTS as conflict:
            # By somebody whom no lock binds.
            print(f"sluice: {stamp.flow}: batch {batch} is written again: {conflict}", file=sys.stderr, flush=True)
        may_be_replay = may_be_replay or life.fast_path.has_put_aside
        life.fast_path.forget()
    _write(rows, life, stamp, may_be_replay)


def _write(rows: DataFrame, life: FlowContext, stamp: CommitMetadata, may_be_replay: bool) -> None:
    """By Spark's own writers, which take batches of any size into tables of any kind."""
    table = life.table
    is_raw = prepare.is_raw(table)
    records = sum(each.count for each in offset_ranges.of_kafka(stamp.source_from, stamp.source_to)) if is_raw else 0
    # A batch of unknown size may be the first of a long history.
    tuning.tune(rows.sparkSession, records or life.rows_before or tuning.SMALL_BATCH_ROWS)
    if isinstance(table.source, Files):
        life.rows_before = batch_of_files.write(
            rows.sparkSession, table, life.checkpoint, stamp, may_be_replay, life.fast_path
        )
    elif isinstance(table.write, Upsert):
        life.rows_before = _recompute(rows, life, table.write, stamp)
    elif is_raw:
        commit.commit(table_rows.in_few_files(rows, records), table, stamp)
    else:
        life.rows_before = _append_judged(rows, life, table.write, stamp, may_be_replay)


def _append_judged(
    rows: DataFrame, life: FlowContext, write: Append, stamp: CommitMetadata, may_be_replay: bool
) -> int:
    table = life.table
    rules = watermark.rules_of(table, life.newest)
    judged = (
        watermark.with_lateness(rows, table, life.newest)
        if life.is_prepared
        else prepare.with_violations(rows, table, rules)
    )
    judged = judged.persist()
    try:
        tally, starts, newest = _counted(judged, rules, table, write)
        quality.require_none_fails(tally, rules, stamp)
        if tally.quarantined or (may_be_replay and settings().is_stored(table.quarantine)):
            broken = judged.filter(quality.ends_as("quarantine", rules)).coalesce(1)
            last_commit = life.checkpoint.last_commit
            if not life.may_have_been_tried(stamp.batch):
                last_commit = (stamp.generation, stamp.batch - 1)
            commit.quarantine(broken, table, stamp, may_be_replay, last_commit)
        good = judged if tally.kept == tally.read else judged.filter(quality.ends_as("warn", rules))
        good = good.drop(quality.RULES)
        if write.unique:
            good = deduplicate.first_of_each(good, table, write, deduplicate.near(table, write, starts))
        if write.watermark:
            newest = max((time for time in (newest, life.newest) if time is not None), default=None)
            stamp = replace(stamp, newest={write.watermark.of: newest})
        commit.commit(table_rows.in_few_files(good, tally.kept), table, replace(stamp, rows=asdict(tally)))
        life.newest = newest
        return tally.read
    finally:
        judged.unpersist()


def _counted(
    judged: DataFrame, rules: tuple[Rule, ...], table: Table, write: Append
) -> tuple[RowCounts, set[int], int | None]:
    """How many rows go where; of those that are kept, the minutes they lie in, and the newest time."""
    moment = deduplicate.moment(table, write)
    starts = F.unix_seconds(data_skipping.bucket(moment, "minute")) if moment else F.lit(None).cast("bigint")
    newest = F.unix_micros(f"`{moment}`") if write.watermark else F.lit(None).cast("bigint")
    # By which rules they break: mostly by one group, that of the rows that break none.
    groups = (
        judged.groupBy(*([quality.RULES] if rules else []))
        .agg(F.count("*").alias("rows"), F.collect_set(starts).alias("starts"), F.max(newest).alias("newest"))
        .select(F.col(quality.RULES) if rules else F.array().alias(quality.RULES), "rows", "starts", "newest")
        .collect()
    )
    tally = RowCounts.of([(group[quality.RULES], group["rows"]) for group in groups], rules)
    kept = [group for group in groups if quality.strictest(group[quality.RULES], rules) == "warn"]
    times = [group["newest"] for group in kept if group["newest"] is not None]
    return tally, {start for group in kept for start in group["starts"]}, max(times, default=None)


def _recompute(rows: DataFrame, life: FlowContext, write: Upsert, stamp: CommitMetadata) -> int:
    table, by, version = life.table, write.recompute, ledger.read_version(stamp.source_to)
    if by is None:
        commit.commit(table_rows.recomputed(rows.sparkSession, table, write, version), table, stamp)
        return rows.count()
    starts = rows if life.is_prepared else prepare.starts(rows, table, by)
    counts = table_rows.touched(starts)
    condition = data_skipping.condition(by.of, counts, by.unit)
    buckets = table_rows.recomputed(rows.sparkSession, table, write, version, condition)
    near = data_skipping.condition(f"stored`.`{by.name}", counts, by.unit)
    commit.commit(buckets, table, stamp, pruning=near)
    return sum(counts.values())
