"""Writes one micro-batch: from its source rows to its commit."""

from dataclasses import dataclass, replace

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from include import logs
from include.checkpoints import checkpoint_files
from include.control.skips import Skip
from include.engine import commit, struct_type
from include.engine.batch import batch_of_files, failed_rows
from include.engine.batch.aggregate_batch import AggregateWriter
from include.engine.batch.append_batch import AppendWriter, RecordWriter
from include.engine.batch.failed_rows import Work
from include.engine.batch.merge_batch import MergeWriter
from include.engine.batch.writer import Writer, quarantine
from include.engine.checkpoints.checkpoint import Checkpoint, require_unrestored
from include.engine.commit import CommitMetadata
from include.engine.fast_path.path import FastPath
from include.engine.python_limits import limited
from include.engine.rows import prepare, storable, watermark
from include.engine.rows.lookup import Versions
from include.engine.rows.micro_batch import MicroBatch, Written
from include.engine.rows.quality import RowCounts
from include.engine.rows.watermark import EventTimes
from include.spec import Expect, Flow

# One per write mode. The first that suits a table writes it.
WRITERS: tuple[Writer, ...] = (AggregateWriter(), RecordWriter(), MergeWriter(), AppendWriter())


def _writer_of(table: Flow) -> Writer:
    return next(writer for writer in WRITERS if writer.suits(table))


@dataclass
class FlowContext:
    """One flow in one process: its table, its checkpoint and the epoch of its lease.

    rows_before: rows of the last batch, by which the next one is tuned; 0 if unknown. rows_written: by the last batch;
    None if only the log tells. newest: for a table with a
    watermark, its greatest time so far, in microseconds since 1970; None until it is read. latest: the
    greatest time that a row of the batch may have to count for that. fast_path: writes small batches; None if Spark
    writes all of them. is_prepared: batches come as `prepare.prepared` builds them. versions: of the tables of its
    lookups; None if it has no lookups. constraints: CHECK constraints of the table, as rules, and for Kafka records
    that of their headers; read when a batch has failed. left_out: for an aggregate, source rows as JSON of which none
    can be computed, by its quarantine; None until they are read.
    """

    table: Flow
    checkpoint: Checkpoint
    epoch: int
    rows_before: int = 0
    rows_written: int | None = None
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

    def batch(self, rows: DataFrame, metadata: CommitMetadata) -> MicroBatch:
        """Returns these rows as the batch of this metadata, to be judged by `times`."""
        return MicroBatch(
            self.table,
            rows,
            self.checkpoint,
            metadata,
            self.times,
            self.last_commit_before(metadata.batch),
            self.may_have_been_tried(metadata.batch),
            self.is_prepared,
            self.constraints,
            self.left_out or frozenset(),
            rows_before=self.rows_before,
        )

    def note(self, written: Written) -> None:
        """Remembers what a batch leaves for the next one."""
        self.rows_before, self.rows_written, self.newest = written.rows, written.written, written.newest


class SourceRowsNeeded(Exception):
    """A row may have made the batch fail. Its rows have to be those of the source, to find that row."""


def write(rows: DataFrame, batch: int, context: FlowContext) -> None:
    """Writes one batch of a flow. Repeating it with the same batch leaves the tables unchanged.

    rows: columns of the source, or those of `prepare.prepared` if `context.is_prepared`. Rows of the source of which no
    row can be made go to the quarantine. Raises SourceRowsNeeded if they are to be looked for among prepared rows.
    """
    context.rows_written = None
    if batch <= context.checkpoint.written:
        # The batch is committed. A changed rule or transform must not alter its quarantined rows.
        return
    if (skip := context.checkpoint.skip) and skip.batch == batch:
        _leave_out(rows, context, context.stamp(batch), skip)
        return
    try:
        with limited(rows.sparkSession, context.table.python, context.table.flow, batch):
            _write_unwritten(rows, batch, context)
    except (PySparkException, Py4JError) as error:
        if isinstance(error, commit.CONFLICTS) or not failed_rows.is_suspected(error, context.table):
            if unread := failed_rows.of_unread_file(context.table, context.stamp(batch), error):
                raise unread from error
            raise
        if commit.is_written(context.stamp(batch)):
            # An error after the commit.
            context.newest = None
            return
        if context.is_prepared and not _writer_of(context.table).reads_again:
            raise SourceRowsNeeded from error
        if context.table.reads_files:
            # Its files were searched already.
            raise failed_rows.not_narrowed(Work.of_batch(context.table, context.stamp(batch)), error) from error
        _write_isolated(rows, batch, context, error)


def _leave_out(rows: DataFrame, context: FlowContext, metadata: CommitMetadata, skip: Skip) -> None:
    """Commits the batch without rows, with the name of who approved that."""
    table, spark = context.table, rows.sparkSession
    metadata = replace(metadata, skipped={"who": skip.who, "reason": skip.reason})
    if table.watermark:
        context.read_times(spark, metadata.batch)
        metadata = metadata.reaching(table.watermark, context.newest)
    batch = replace(context.batch(rows, metadata), may_be_replay=True)
    reason = f"left out with batch {metadata.batch}, as {skip.who} has approved: {skip.reason}"
    if table.reads_files:
        left_out: DataFrame | None = batch_of_files.left_out(batch, skip.who)
    else:
        left_out = _writer_of(table).left_out(batch, reason)
    if left_out is not None:
        quarantine(left_out, batch)
    context.left_out = None
    no_rows = spark.createDataFrame([], struct_type.from_ddl(table.schema))
    commit.execute(lambda: commit.append(no_rows, table), spark, metadata)
    logs.warning(f"it was left out, as {skip.who} has approved", table.flow, metadata.batch)


def _write_isolated(rows: DataFrame, number: int, context: FlowContext, error: Exception) -> None:
    """Writes the batch without the rows that make it fail with this error. These go to the quarantine."""
    table, metadata = context.table, context.stamp(number)
    failed_rows.announce(Work.of_batch(table, metadata), error)
    if context.fast_path:
        context.fast_path.forget()
    context.constraints = (*prepare.rules_of_source(table), *storable.constraints_of(table))
    context.note(_writer_of(table).write_isolated(context.batch(rows, metadata), error))
    # More rows may be left out by now.
    context.left_out = None


def _write_unwritten(rows: DataFrame, number: int, context: FlowContext) -> None:
    table, metadata = context.table, context.stamp(number)
    if not context.is_prepared and prepare.has_no_columns_yet(rows, table) and rows.isEmpty():
        no_rows = rows.sparkSession.createDataFrame([], struct_type.from_ddl(table.schema))
        commit.commit(no_rows, table, metadata.counting(RowCounts.of([], table.expect)))
        return
    context.read_times(rows.sparkSession, number)
    if _writer_of(table).reads_again and (context.left_out is None or context.left_out):
        # A backfill may have made rows of them.
        context.left_out = failed_rows.left_out(table)
    batch = context.batch(rows, metadata)
    if context.fast_path and not table.reads_files and not batch.left_out:
        if written := _write_small(batch, context, context.fast_path):
            context.note(written)
            return
        has_companions = context.fast_path.has_written_companions
        batch = replace(batch, may_be_replay=batch.may_be_replay or has_companions, rows_before=context.rows_before)
    if batch.last_commit:
        require_unrestored(table, batch.last_commit)
    if table.reads_files:
        # A batch of unknown size may be the first of a long history.
        prepare.tune(rows.sparkSession, batch.rows_before or prepare.SMALL_BATCH_ROWS)
        context.note(batch_of_files.write(batch, context.fast_path))
    else:
        context.note(_writer_of(table).write(batch))


def _write_small(batch: MicroBatch, context: FlowContext, fast_path: FastPath) -> Written | None:
    """Writes the batch by the fast path. Returns None if Spark is to write it."""
    try:
        answer = fast_path.write(batch)
        if isinstance(answer, Written):
            return answer
        fast_path.say(answer)
        if answer.is_large:
            context.rows_before = 0
    except commit.CONFLICTS as conflict:
        # Another writer, which takes no locks, has committed meanwhile.
        logs.warning(f"it conflicted and is retried: {conflict}", batch.metadata.flow, batch.metadata.batch)
    is_unanswered = fast_path.may_have_committed
    fast_path.forget()
    # After an error behind the commit, the watermark is read from there.
    return Written(0, None) if is_unanswered and commit.is_written(batch.metadata) else None
