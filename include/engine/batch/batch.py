"""Writes one micro-batch: from its source rows to its commit."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include import logs
from include.checkpoints import checkpoint_files, offset_ranges
from include.control.skips import Skip
from include.engine import struct_type
from include.engine.batch import (
    deduplicate,
    isolation,
    lookup,
    merge_batch,
    prepare,
    quality,
    storable,
    transform,
    watermark,
)
from include.engine.batch.isolation import FailedRows, Work
from include.engine.batch.lookup import Versions
from include.engine.batch.quality import RowCounts
from include.engine.batch.watermark import EventTimes
from include.engine.checkpoints.checkpoint import Checkpoint, require_unrestored
from include.engine.fast_path.path import FastPath, TooLarge
from include.engine.fast_path.transaction import NotSupported
from include.engine.files import batch_of_files
from include.engine.python.limits import limited
from include.engine.tables import commit, create_table
from include.engine.tables.commit import CommitMetadata, read_table
from include.settings import settings
from include.spec import Append, Bucket, Expect, Rule, Table, Upsert


@dataclass
class FlowContext:
    """One flow in one process: its table, its checkpoint and the epoch of its lease.

    rows_before: rows of the last batch, by which the next one is tuned; 0 if unknown. newest: for a table with a
    watermark, its greatest time so far, in microseconds since 1970; None until it is read. latest: the
    greatest time that a row of the batch may have to count for that. fast_path: writes small batches; None if Spark
    writes all of them. is_prepared: batches come as `prepare.prepared` builds them. versions: of the tables of its
    lookups; None if it has no lookups. constraints: CHECK constraints of the table, as rules; read
    when a batch has failed. left_out: for an aggregate, source rows as JSON of which none can be computed, by its
    quarantine; None until they are read.
    """

    table: Table
    checkpoint: Checkpoint
    epoch: int
    rows_before: int = 0
    newest: int | None = None
    latest: int | None = None
    fast_path: FastPath | None = None
    is_prepared: bool = False
    versions: Versions | None = None
    constraints: tuple[Expect, ...] = ()
    left_out: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if self.table.lookups and self.versions is None:
            self.versions = Versions(self.table)

    def stamp(self, batch: int) -> CommitMetadata:
        """Returns the metadata of the batch's commit, with its offsets as the checkpoint holds them."""
        source_from = checkpoint_files.end_offset(self.checkpoint.path, batch - 1)
        source_to = checkpoint_files.end_offset(self.checkpoint.path, batch)
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

    @property
    def times(self) -> EventTimes:
        """What makes a row of the batch late, or too far ahead."""
        return EventTimes(self.newest, self.latest)

    def read_times(self, spark: SparkSession, batch: int) -> None:
        """Reads what `times` of this batch are."""
        if self.table.watermark:
            self.latest = watermark.latest(self.table, self.checkpoint.path, batch)
            if self.newest is None:
                self.newest = watermark.newest(spark, self.table, self.latest)

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

    def rules(self) -> tuple[Rule, ...]:
        """Returns the rules by which Spark's path checks rows that are not prepared."""
        return (*watermark.rules_of(self.table, self.times), *self.constraints)


class SourceRowsNeeded(Exception):
    """A row may have made the batch fail. Its rows have to be those of the source, to find that row."""


def write(rows: DataFrame, batch: int, context: FlowContext) -> None:
    """Writes one batch of a flow. Repeating it with the same batch leaves the tables unchanged.

    rows: columns of the source, or those of `prepare.prepared` if `context.is_prepared`. Rows of the source of which no
    row can be made go to the quarantine. Raises SourceRowsNeeded if they are to be looked for among prepared rows.
    """
    if batch <= context.checkpoint.written:
        # The batch is committed. A changed rule or transform must not alter its quarantined rows.
        return
    if (skip := context.checkpoint.skip) and skip.batch == batch:
        _leave_out(rows, context, context.stamp(batch), skip)
        return
    try:
        with limited(rows.sparkSession, context.table, batch):
            _write_unwritten(rows, batch, context)
    except (PySparkException, Py4JError) as error:
        if isinstance(error, commit.CONFLICTS) or not isolation.is_suspected(error, context.table):
            if unread := isolation.of_unread_file(context.table, context.stamp(batch), error):
                raise unread from error
            raise
        if commit.is_written(context.stamp(batch)):
            # An error after the commit.
            context.newest = None
            return
        if context.is_prepared and not context.table.is_recomputed:
            raise SourceRowsNeeded from error
        if context.table.origin.reads_files:
            # Its files were searched already.
            raise isolation.not_narrowed(Work.of_batch(context.table, context.stamp(batch)), error) from error
        _write_isolated(rows, context, context.stamp(batch), error)


def _leave_out(rows: DataFrame, context: FlowContext, metadata: CommitMetadata, skip: Skip) -> None:
    """Commits the batch without rows, with the name of who approved that. An aggregate without buckets, which reads
    all rows of its source in each batch, leaves these out from now on.
    """
    table, spark = context.table, rows.sparkSession
    metadata = replace(metadata, skipped={"who": skip.who, "reason": skip.reason})
    if table.watermark:
        context.read_times(spark, metadata.batch)
        metadata = replace(metadata, newest={table.watermark.of: context.newest})
    last_commit = context.last_commit_before(metadata.batch)
    if table.origin.reads_files:
        left_out = batch_of_files.left_out(spark, table, context.checkpoint, metadata, skip.who)
        commit.add_to_companion(left_out, table.quarantine, metadata, True, last_commit)
    elif table.write.recomputes_all:
        reason = f"left out with batch {metadata.batch}, as {skip.who} has approved: {skip.reason}"
        _quarantine(isolation.left_out_with_batch(rows, table, reason), context, metadata, True)
        context.left_out = None
    elif settings().is_stored(table.quarantine):
        # Rows of an earlier try.
        none = read_table(spark, table.quarantine).limit(0).drop(*commit.quarantine_columns(asdict(metadata)))
        commit.add_to_companion(none, table.quarantine, metadata, True, last_commit)
    no_rows = spark.createDataFrame([], struct_type.from_ddl(table.schema))
    commit.execute(lambda: commit.append(no_rows, table), spark, metadata)
    logs.warning(f"it was left out, as {skip.who} has approved", table.flow, metadata.batch)


def _write_isolated(rows: DataFrame, context: FlowContext, metadata: CommitMetadata, error: Exception) -> None:
    """Writes the batch without the rows that make it fail with this error. These go to the quarantine."""
    table = context.table
    work = Work.of_batch(table, metadata)
    isolation.announce(work, error)
    if context.fast_path:
        context.fast_path.forget()
    if table.is_recomputed:
        _recompute_isolated(rows, context, table.write_as(Upsert), metadata, error)
        return
    context.constraints = storable.constraints_of(table)

    def check(some_rows: DataFrame) -> DataFrame:
        return _checked(some_rows, context, metadata, context.rules())

    is_proven = isolation.has_made_rows(table, context.checkpoint)
    with (
        isolation.isolated(rows, table, metadata, error, check, is_proven) as isolated,
        isolation.narrowed(work),
        limited(rows.sparkSession, table, metadata.batch),
    ):
        # An earlier try may have left rows in the quarantine.
        _write(isolated.rows, context, metadata, True, isolated.failed)


def _write_unwritten(rows: DataFrame, batch: int, context: FlowContext) -> None:
    table, metadata, may_be_replay = context.table, context.stamp(batch), context.may_have_been_tried(batch)
    if not context.is_prepared and prepare.has_no_columns_yet(rows, table) and rows.isEmpty():
        no_rows = rows.sparkSession.createDataFrame([], struct_type.from_ddl(table.schema))
        commit.commit(no_rows, table, replace(metadata, rows=asdict(RowCounts.of([], table.expect))))
        return
    context.read_times(rows.sparkSession, batch)
    if table.is_recomputed and (context.left_out is None or context.left_out):
        # A backfill may have made rows of them.
        context.left_out = isolation.left_out(table)
    if context.fast_path and not table.origin.reads_files and not context.left_out:
        try:
            written = context.fast_path.write(
                rows,
                metadata,
                context.times,
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
            logs.warning(f"it conflicted and is retried: {conflict}", metadata.flow, batch)
        may_be_replay = may_be_replay or context.fast_path.has_written_companions
        is_unanswered = context.fast_path.may_have_committed
        context.fast_path.forget()
        if is_unanswered and commit.is_written(metadata):
            # An error after the commit. Its watermark is read from there.
            context.rows_before, context.newest = 0, None
            return
    if last_commit := context.last_commit_before(batch):
        require_unrestored(table, last_commit)
    _write(rows, context, metadata, may_be_replay)


def _write(
    rows: DataFrame,
    context: FlowContext,
    metadata: CommitMetadata,
    may_be_replay: bool,
    failed: FailedRows | None = None,
) -> None:
    """Writes the batch with Spark's writers, which take batches of any size and tables of any kind.

    failed: rows of the source that go to the quarantine, because no row can be made of them.
    """
    table = context.table
    is_raw = prepare.is_raw(table)
    records = (
        sum(offset_range.count for offset_range in offset_ranges.kafka_ranges(metadata.source_from, metadata.source_to))
        if is_raw
        else 0
    )
    # A batch of unknown size may be the first of a long history.
    prepare.tune(rows.sparkSession, records or context.rows_before or prepare.SMALL_BATCH_ROWS)
    if table.origin.reads_files:
        context.rows_before = batch_of_files.write(
            rows.sparkSession, table, context.checkpoint, metadata, may_be_replay, context.fast_path
        )
    elif table.is_recomputed:
        context.rows_before = _recompute(rows, context, table.write_as(Upsert), metadata)
    elif is_raw:
        _write_raw(rows, context, metadata, may_be_replay, failed, records)
    else:
        context.rows_before = _write_checked(rows, context, metadata, may_be_replay, failed)


def _write_raw(
    rows: DataFrame,
    context: FlowContext,
    metadata: CommitMetadata,
    may_be_replay: bool,
    failed: FailedRows | None,
    records: int,
) -> None:
    """Appends Kafka records as they are. records: their number, about."""
    rows = isolation.with_storable_times(rows)
    bad = [failed.rows] if failed else []
    if context.constraints:
        checked_rows = quality.with_violations(rows, context.constraints)
        rows = checked_rows.filter(F.size(quality.RULES) == 0).drop(quality.RULES)
        bad.append(checked_rows.filter(F.size(quality.RULES) > 0))
    if bad:
        quarantined = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), bad)
        _quarantine(quarantined, context, metadata, may_be_replay)
    commit.commit(transform.coalesce_small(rows, records), context.table, metadata)


def _checked(rows: DataFrame, context: FlowContext, metadata: CommitMetadata, rules: tuple[Rule, ...]) -> DataFrame:
    """Returns the rows of a batch as rows of the table plus `_rules`, the rules that each breaks."""
    table = context.table
    if table.lookups:
        parsed_rows = rows if context.is_prepared else prepare.parsed(rows, table)
        dimensions = lookup.dimensions(rows.sparkSession, table, metadata.lookups)
        return prepare.looked_up(parsed_rows, table, rules, dimensions)
    if context.is_prepared:
        return watermark.with_broken(rows, table, context.times)
    return prepare.with_violations(rows, table, rules)


def _quarantine(rows: DataFrame, context: FlowContext, metadata: CommitMetadata, may_be_replay: bool) -> None:
    """Writes rows of the batch into the quarantine, which it creates for a table whose rules need none."""
    table = context.table
    if not settings().is_stored(table.quarantine):
        create_table.create_quarantine(rows.sparkSession, table, rows.sparkSession.sql)
    last_commit = context.last_commit_before(metadata.batch)
    commit.add_to_companion(rows.coalesce(1), table.quarantine, metadata, may_be_replay, last_commit)


def _write_checked(
    rows: DataFrame,
    context: FlowContext,
    metadata: CommitMetadata,
    may_be_replay: bool,
    failed: FailedRows | None,
) -> int:
    """Checks the rules, quarantines broken rows, and appends or merges the others. Returns the rows of the batch."""
    table, write, rules = context.table, context.table.write, context.rules()
    checked_rows = _checked(rows, context, metadata, rules).persist()
    try:
        counts, minutes, kept_times = _count_rows(checked_rows, rules, table)
        if table.lookups:
            metadata = replace(metadata, no_partner=lookup.no_partner(checked_rows, table))
        quality.require_none_fails(counts, rules, metadata)
        last_commit = context.last_commit_before(metadata.batch)
        kept_rows = checked_rows if counts.kept == counts.read else checked_rows.filter(quality.ends_as("warn", rules))
        kept_rows = kept_rows.drop(quality.RULES)
        counts = counts.with_failed(failed.count if failed else 0)
        if counts.quarantined or (may_be_replay and settings().is_stored(table.quarantine)):
            quarantined = storable.for_quarantine(checked_rows.filter(quality.ends_as("quarantine", rules)))
            if failed:
                quarantined = quarantined.unionByName(failed.rows, allowMissingColumns=True)
            _quarantine(quarantined, context, metadata, may_be_replay)
        newest = context.times.after(kept_times)
        if write.watermark:
            metadata = replace(metadata, newest={write.watermark.of: newest})
        metadata = replace(metadata, rows=asdict(counts))
        if write.upserts:
            merge_batch.write(kept_rows, table, table.write_as(Upsert), metadata, may_be_replay, last_commit)
            context.newest = newest
            return counts.read
        if write.unique:
            append = table.write_as(Append)
            near = deduplicate.stored_rows_condition(table, append, minutes)
            kept_rows = deduplicate.first_of_each(kept_rows, table, append, near)
        commit.commit(transform.coalesce_small(kept_rows, counts.kept), table, metadata)
        context.newest = newest
        return counts.read
    finally:
        checked_rows.unpersist()


def _count_rows(
    checked_rows: DataFrame, rules: tuple[Rule, ...], table: Table
) -> tuple[RowCounts, set[int], list[int | None]]:
    """Counts the rows by what the rules say of them. Also returns the minutes (seconds since 1970) of the kept rows,
    and watermark times (microseconds since 1970), the greatest of each group of rows that break the same rules.
    """
    watermark_of = table.watermark.of if table.watermark else None
    time_column = deduplicate.time_column(table, table.write) if table.write.appends else None
    start = F.unix_seconds(deduplicate.bucket(time_column, "minute")) if time_column else F.lit(None).cast("bigint")
    newest = F.unix_micros(f"`{watermark_of}`") if watermark_of else F.lit(None).cast("bigint")
    groups = (
        checked_rows.groupBy(quality.RULES, start.alias("start"))
        .agg(F.count("*").alias("rows"), F.max(newest).alias("newest"))
        .collect()
    )
    counts = RowCounts.of([(group[quality.RULES], group["rows"]) for group in groups], rules)
    kept_groups = [group for group in groups if quality.strictest(group[quality.RULES], rules) == "warn"]
    starts = {group["start"] for group in kept_groups if group["start"] is not None}
    return counts, starts, [group["newest"] for group in kept_groups]


def _recompute(rows: DataFrame, context: FlowContext, write: Upsert, metadata: CommitMetadata) -> int:
    """Recomputes the keys or buckets that the batch touches, and merges them. Returns how many rows the batch has."""
    table, bucket, version = context.table, write.recompute, checkpoint_files.read_version(metadata.source_to)
    left_out = context.left_out or ()
    if bucket is None:
        # Before the commit, behind which nothing may fail.
        count = rows.count()
        recomputed_rows = transform.recomputed(rows.sparkSession, table, write, version, left_out=left_out)
        commit.commit(recomputed_rows, table, metadata)
        return count
    counts = _count_by_bucket(rows, context, bucket)
    starts = deduplicate.within_reach(counts, bucket.unit, write.reach_seconds)
    _replace_buckets(rows.sparkSession, starts, context, write, metadata)
    return sum(counts.values())


def _count_by_bucket(rows: DataFrame, context: FlowContext, bucket: Bucket) -> dict[int | None, int]:
    return transform.count_by_bucket(rows if context.is_prepared else prepare.starts(rows, context.table, bucket))


def _replace_buckets(
    spark: SparkSession,
    starts: Iterable[int | None],
    context: FlowContext,
    write: Upsert,
    metadata: CommitMetadata,
    failing: Sequence[int | None] = (),
) -> None:
    """Recomputes the buckets with these starts, in seconds since 1970, and commits them as the batch.

    failing: starts of buckets between them that are not to be read.
    """
    table, bucket, starts = context.table, write.recompute, set(starts)
    assert bucket
    version = checkpoint_files.read_version(metadata.source_to)
    buckets = transform.Buckets.at(starts, bucket, write, failing)
    recomputed_rows = transform.recomputed(spark, table, write, version, buckets, context.left_out or ())
    pruning = deduplicate.condition(f"stored`.`{bucket.name}", starts, bucket.unit)
    commit.commit(recomputed_rows, table, metadata, pruning=pruning)


def _recompute_isolated(
    rows: DataFrame, context: FlowContext, write: Upsert, metadata: CommitMetadata, error: Exception
) -> None:
    """Recomputes without the source rows that fail by themselves, and without the buckets that then still fail.

    Both go to the quarantine. A bucket keeps its stored rows.
    """
    table, spark, bucket = context.table, rows.sparkSession, write.recompute
    work = Work.of_batch(table, metadata)
    starts = sorted(
        deduplicate.within_reach(_count_by_bucket(rows, context, bucket), bucket.unit, write.reach_seconds)
        if bucket
        else (),
        key=lambda start: (start is not None, start),
    )
    version = checkpoint_files.read_version(metadata.source_to)
    buckets = transform.Buckets.at(starts, bucket, write) if bucket else transform.Buckets()
    source = transform.of_buckets(read_table(spark, table.origin.table, version), table, buckets)
    source = transform.without(source, context.left_out or ())

    constraints = storable.constraints_of(table)

    def aggregate(some_rows: DataFrame) -> DataFrame:
        return storable.guarded(transform.aggregated(some_rows, table, write, buckets), constraints)

    def aggregate_buckets(some_starts: Sequence[int | None], left_out: frozenset[str]) -> DataFrame:
        assert bucket
        some_buckets = transform.Buckets.at(some_starts, bucket, write)
        left_out |= context.left_out or frozenset()
        rows_of_buckets = transform.recomputed(spark, table, write, version, some_buckets, left_out)
        return storable.guarded(rows_of_buckets, constraints)

    with isolation.rows_and_buckets(source, starts, work, error, aggregate, aggregate_buckets) as isolated:
        context.left_out = (context.left_out or frozenset()) | isolated.left_out
        if isolated.failed:
            _quarantine(isolated.failed.rows, context, metadata, True)
        if bucket:
            _replace_buckets(spark, isolated.starts, context, write, metadata, isolated.failing)
        else:
            _recompute(rows, context, write, metadata)
