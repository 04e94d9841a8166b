"""Writes one micro-batch: from its source rows to its commit."""

import sys
from dataclasses import asdict, dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.engine import struct_type
from include.engine.batch import (
    data_skipping,
    deduplicate,
    lookup,
    merge_batch,
    prepare,
    quality,
    table_rows,
    tuning,
    watermark,
)
from include.engine.batch.lookup import Versions
from include.engine.batch.quality import RowCounts
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.fast_path.features import NotSupported
from include.engine.fast_path.path import FastPath, TooLarge
from include.engine.files import batch_of_files
from include.engine.python.limited_batch import limited
from include.engine.tables import commit
from include.engine.tables.commit import CommitMetadata
from include.readers import checkpoint, offset_ranges
from include.settings import settings
from include.spec import Append, Files, Replace, Rule, Table, Upsert


@dataclass
class FlowContext:
    """One flow in one process: its table, its checkpoint and the epoch of its lease.

    rows_before: rows of the last batch, by which the next one is tuned; 0 if unknown. newest: for a table with a
    watermark, its greatest time so far, in microseconds since 1970; None until it is read. fast_path: writes small
    batches; None if Spark writes all of them. is_prepared: batches come as `prepare.prepared` builds them. versions: of
    the tables of its lookups; None if it has no lookups.
    """

    table: Table
    checkpoint: Checkpoint
    epoch: int
    rows_before: int = 0
    newest: int | None = None
    fast_path: FastPath | None = None
    is_prepared: bool = False
    versions: Versions | None = None

    def __post_init__(self) -> None:
        if self.table.lookups and self.versions is None:
            self.versions = Versions(self.table)

    def stamp(self, batch: int) -> CommitMetadata:
        """Returns the metadata of the batch's commit, with its offsets as the checkpoint holds them."""
        source_from = checkpoint.end_offset(self.checkpoint.path, batch - 1)
        source_to = checkpoint.end_offset(self.checkpoint.path, batch)
        flow_checkpoint = self.checkpoint
        return CommitMetadata(
            self.table.flow,
            flow_checkpoint.generation,
            batch,
            self.epoch,
            flow_checkpoint.source,
            source_from,
            source_to,
            lookups=self.versions.current() if self.versions else None,
        )

    def may_have_been_tried(self, batch: int) -> bool:
        """Whether an earlier process may have begun this batch: only the first one after the last commit."""
        return batch == self.checkpoint.written + 1

    def last_commit_before(self, batch: int) -> tuple[int, int] | None:
        """Returns generation and batch of the flow's newest commit before this batch; None if there is none."""
        if self.may_have_been_tried(batch):
            return self.checkpoint.last_commit
        return self.checkpoint.generation, batch - 1

    def left_before(self, batch: int) -> tuple[int, int] | None:
        """Returns generation and batch after which an earlier try of this batch may have quarantined rows; None if
        there was none.
        """
        return (self.checkpoint.last_commit or (0, 0)) if self.may_have_been_tried(batch) else None


def write(rows: DataFrame, batch: int, context: FlowContext) -> None:
    """Writes one batch of a flow. Repeating it with the same batch leaves the tables unchanged.

    rows: columns of the source, or those of `prepare.prepared` if `context.is_prepared`.
    """
    if batch <= context.checkpoint.written:
        # The batch is committed. A changed rule or transform must not alter its quarantined rows.
        return
    with limited(rows, context.table, batch):
        _write_unwritten(rows, batch, context)


def _write_unwritten(rows: DataFrame, batch: int, context: FlowContext) -> None:
    table, metadata, may_be_replay = context.table, context.stamp(batch), context.may_have_been_tried(batch)
    if not context.is_prepared and prepare.has_no_columns_yet(rows, table) and rows.isEmpty():
        no_rows = rows.sparkSession.createDataFrame([], struct_type.from_ddl(table.schema))
        commit.commit(no_rows, table, replace(metadata, rows=asdict(RowCounts.of([], table.expect))))
        return
    if table.watermark and context.newest is None:
        context.newest = watermark.newest(rows.sparkSession, table)
    if context.fast_path and not isinstance(table.source, Files):
        try:
            written = context.fast_path.write(
                rows,
                metadata,
                context.newest,
                context.last_commit_before(batch),
                context.left_before(batch),
                context.is_prepared,
            )
            context.rows_before, context.newest = written.rows, written.newest
            return
        except NotSupported as reason:
            context.fast_path.say(reason)
            if isinstance(reason, TooLarge):
                context.rows_before = 0
        except commit.CONFLICTS as conflict:
            # Another writer, which takes no locks, has committed meanwhile.
            print(f"sluice: {metadata.flow}: batch {batch} is written again: {conflict}", file=sys.stderr, flush=True)
        may_be_replay = may_be_replay or context.fast_path.has_written_companions
        context.fast_path.forget()
    _write(rows, context, metadata, may_be_replay)


def _write(rows: DataFrame, context: FlowContext, metadata: CommitMetadata, may_be_replay: bool) -> None:
    """Writes the batch with Spark's writers, which take batches of any size and tables of any kind."""
    table = context.table
    is_raw = prepare.is_raw(table)
    records = (
        sum(offset_range.count for offset_range in offset_ranges.kafka_ranges(metadata.source_from, metadata.source_to))
        if is_raw
        else 0
    )
    # A batch of unknown size may be the first of a long history.
    tuning.tune(rows.sparkSession, records or context.rows_before or tuning.SMALL_BATCH_ROWS)
    if isinstance(table.source, Files):
        context.rows_before = batch_of_files.write(
            rows.sparkSession, table, context.checkpoint, metadata, may_be_replay, context.fast_path
        )
    elif isinstance(table.write, Upsert) and not table.merges_changes:
        context.rows_before = _recompute(rows, context, table.write, metadata)
    elif is_raw:
        commit.commit(table_rows.coalesce_small(rows, records), table, metadata)
    else:
        assert not isinstance(table.write, Replace), "a view has no flow"
        context.rows_before = _write_checked(rows, context, table.write, metadata, may_be_replay)


def _write_checked(
    rows: DataFrame, context: FlowContext, write: Append | Upsert, metadata: CommitMetadata, may_be_replay: bool
) -> int:
    """Checks the rules, quarantines broken rows, and appends or merges the others. Returns the rows of the batch."""
    table = context.table
    rules = watermark.rules_of(table, context.newest)
    if table.lookups:
        parsed_rows = rows if context.is_prepared else prepare.parsed(rows, table)
        dimensions = lookup.dimensions(rows.sparkSession, table, metadata.lookups)
        checked_rows = prepare.looked_up(parsed_rows, table, rules, dimensions)
    elif context.is_prepared:
        checked_rows = watermark.with_lateness(rows, table, context.newest)
    else:
        checked_rows = prepare.with_violations(rows, table, rules)
    checked_rows = checked_rows.persist()
    try:
        counts, minutes, newest = _count_rows(checked_rows, rules, table, write)
        quality.require_none_fails(counts, rules, metadata)
        last_commit = context.last_commit_before(metadata.batch)
        if counts.quarantined or (may_be_replay and settings().is_stored(table.quarantine)):
            quarantined = checked_rows.filter(quality.ends_as("quarantine", rules)).coalesce(1)
            commit.add_to_companion(quarantined, table.quarantine, metadata, may_be_replay, last_commit)
        kept_rows = checked_rows if counts.kept == counts.read else checked_rows.filter(quality.ends_as("warn", rules))
        kept_rows = kept_rows.drop(quality.RULES)
        if isinstance(write, Upsert):
            metadata = replace(metadata, rows=asdict(counts))
            merge_batch.write(kept_rows, table, write, metadata, may_be_replay, last_commit)
            return counts.read
        if write.unique:
            kept_rows = deduplicate.first_of_each(
                kept_rows, table, write, deduplicate.stored_rows_condition(table, write, minutes)
            )
        if write.watermark:
            newest = max((time for time in (newest, context.newest) if time is not None), default=None)
            metadata = replace(metadata, newest={write.watermark.of: newest})
        commit.commit(table_rows.coalesce_small(kept_rows, counts.kept), table, replace(metadata, rows=asdict(counts)))
        context.newest = newest
        return counts.read
    finally:
        checked_rows.unpersist()


def _count_rows(
    checked_rows: DataFrame, rules: tuple[Rule, ...], table: Table, write: Append | Upsert
) -> tuple[RowCounts, set[int], int | None]:
    """Counts the rows by what the rules say of them. Also returns the minutes (seconds since 1970) of the kept rows,
    and their greatest watermark time (microseconds since 1970).
    """
    watermark_of = table.watermark.of if table.watermark else None
    time_column = deduplicate.time_column(table, write) if isinstance(write, Append) else None
    start = F.unix_seconds(data_skipping.bucket(time_column, "minute")) if time_column else F.lit(None).cast("bigint")
    newest = F.unix_micros(f"`{watermark_of}`") if watermark_of else F.lit(None).cast("bigint")
    groups = (
        checked_rows.groupBy(quality.RULES, start.alias("start"))
        .agg(F.count("*").alias("rows"), F.max(newest).alias("newest"))
        .collect()
    )
    counts = RowCounts.of([(group[quality.RULES], group["rows"]) for group in groups], rules)
    kept_groups = [group for group in groups if quality.strictest(group[quality.RULES], rules) == "warn"]
    times = [group["newest"] for group in kept_groups if group["newest"] is not None]
    starts = {group["start"] for group in kept_groups if group["start"] is not None}
    return counts, starts, max(times, default=None)


def _recompute(rows: DataFrame, context: FlowContext, write: Upsert, metadata: CommitMetadata) -> int:
    """Recomputes the keys or buckets that the batch touches, and merges them. Returns how many rows the batch has."""
    table, bucket, version = context.table, write.recompute, checkpoint.read_version(metadata.source_to)
    if bucket is None:
        commit.commit(table_rows.recomputed(rows.sparkSession, table, write, version), table, metadata)
        return rows.count()
    counts = table_rows.count_by_bucket(rows if context.is_prepared else prepare.starts(rows, table, bucket))
    starts = data_skipping.within_reach(counts, bucket.unit, write.reach_seconds)
    buckets = table_rows.Buckets.at(starts, bucket, write)
    recomputed_rows = table_rows.recomputed(rows.sparkSession, table, write, version, buckets)
    pruning = data_skipping.condition(f"stored`.`{bucket.name}", starts, bucket.unit)
    commit.commit(recomputed_rows, table, metadata, pruning=pruning)
    return sum(counts.values())
