"""One flow in one process: its query, the order it runs under, and its heartbeat."""

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include import catalog, logs
from include.checkpoints import checkpoint_files
from include.control import first_loads
from include.control.flows.orders import Order
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.lock import LockRequest
from include.control.store import database
from include.delta import stored_table
from include.engine import failure
from include.engine.batch import batch
from include.engine.batch.batch import FlowContext, SourceRowsNeeded
from include.engine.checkpoints.checkpoint import Checkpoint, add_topics
from include.engine.fast_path import path
from include.engine.rows import prepare, writer_schemas
from include.engine.rows.micro_batch import Refusal
from include.engine.rows.writer_schemas import HEADER_BYTES
from include.engine.session import late_commits_fail
from include.engine.sources import readers
from include.engine.stream.pacer import Pacer
from include.engine.tables import maintain, retained
from include.errors import FlowBroken, Unreachable
from include.kafka import broker, cluster
from include.kafka.cluster import AccessRefused
from include.kafka.topics import added, require_unreplaced
from include.maintenance import table_survey
from include.maintenance.table_survey import CompactionPlace
from include.monitoring import first_load
from include.monitoring.first_load import FirstLoad
from include.settings import settings
from include.spec import LAYERS, Avro, Delta, Flow, Json, Kafka


class BatchFunction:
    """The function of a query's batches, for `foreachBatch`.

    The JVM refers to it, and what it refers to holds objects of the JVM, its own query among them. No garbage collector
    sees a circle through two heaps, so `close` breaks it.
    """

    def __init__(self, spark: SparkSession, write: Callable[[DataFrame, int], None]) -> None:
        self._spark = spark
        self._write: Callable[[DataFrame, int], None] | None = write
        self._error: BaseException | None = None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        if self._write is None:
            raise InterruptedError("the flow of this query has ended")
        try:
            self._write(rows, batch_id)
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        """Drops all that belongs to the flow. Its query has ended."""
        self._write = None
        # PySpark keeps the error of a batch, and its traceback the frames of the flow.
        while self._error:
            self._error.__traceback__ = None
            self._error = self._error.__cause__ or self._error.__context__
        # py4j keeps the connection of each JVM thread that has called this process, with a thread here that listens,
        # for good. This closes all that are idle; a thread that calls again opens another.
        gateway: Any = self._spark.sparkContext._gateway
        gateway.java_gateway_server.getCallbackClient().periodicCleanup()


# The column of `KAFKA_SCHEMA_WITH_IDS`.
ID_COLUMN = "schema_id"
# By flow, the ids that this process has read. A new plan knows them all.
_known_ids: dict[str, set[int]] = {}


class FlowSchemas:
    """Finds the schema ids of each batch in the files of its source, without a Spark job.

    table: the table whose `parse` has the schemas of all ids that the flow has read in this process.
    """

    def __init__(self, table: Flow, parse: Avro | Json, source: Delta, flow_checkpoint: Checkpoint) -> None:
        self._declared = table
        self._parse = parse
        self._source_table = source.table
        self._reader = readers.of(table)
        self._path = flow_checkpoint.path
        self._has_ids = _has_ids(source)
        ids = set(_known_ids.get(table.flow, ()))
        # Probably all that the next batches have: those of the last batch, and of one that is planned.
        for number in (flow_checkpoint.written, flow_checkpoint.written + 1):
            with suppress(FlowBroken, OSError):
                ids |= self._ids_of_batch(number)
        self._learn(ids)

    @property
    def table(self) -> Flow:
        return replace(self._declared, parse=self._parse)

    def needs_new_plan(self, batch: int) -> bool:
        """Whether the batch has a schema that the plan lacks. Raises RegistryUnreachable."""
        return self._learn(self._ids_of_batch(batch))

    def _learn(self, ids: set[int]) -> bool:
        """Adds the schemas of these ids; returns whether one is new."""
        before = len(self._parse.schemas)
        self._parse = writer_schemas.with_schemas(self._parse, ids)
        _known_ids[self._declared.flow] = set(self._parse.schemas)
        return len(self._parse.schemas) > before

    def _ids_of_batch(self, batch: int) -> set[int]:
        begin, end = checkpoint_files.end_offset(self._path, batch - 1), checkpoint_files.end_offset(self._path, batch)
        if end is None:
            return set()
        planned = self._reader.planned(begin, end)
        if isinstance(planned, Refusal):
            # Ids of other batches do no harm.
            paths = [fragment.path for fragment in stored_table.dataset(self._source_table).get_fragments()]
        else:
            paths = [file.path for file in planned.files]
        file_system = stored_table.file_system(self._source_table)
        ids: set[int] = set()
        for data_path in paths:
            with file_system.open_input_file(data_path) as file:
                ids |= self._ids_of(pq.ParquetFile(file))
        return ids

    def _ids_of(self, file: pq.ParquetFile) -> set[int]:
        if self._has_ids and ID_COLUMN in file.schema_arrow.names:
            ids = pc.unique(file.read([ID_COLUMN]).column(ID_COLUMN)).to_pylist()
            if None not in ids:
                return set(ids)
        # Rows from before the source had the column may have an id, too.
        values = file.read([self._parse.column]).column(self._parse.column)
        heads = pc.unique(pc.binary_slice(values.cast(pa.binary()), 0, HEADER_BYTES)).to_pylist()
        return {
            schema_id
            for head in heads
            if head and head[0] == 0 and len(head) == HEADER_BYTES
            if (schema_id := int.from_bytes(head[1:], "big")) < 2**31
        }


def of(table: Flow, flow_checkpoint: Checkpoint) -> FlowSchemas | None:
    """Returns the schemas of a flow; None if its table has no registry, or if its batches are not whole files."""
    if not uses_registry(table) or table.steps or not table.source.reads_table or table.source.changes:
        return None
    assert isinstance(table.parse, Avro | Json)
    return FlowSchemas(table, table.parse, table.source_as(Delta), flow_checkpoint)


def uses_registry(table: Flow) -> bool:
    return isinstance(table.parse, Avro | Json) and table.parse.registry is not None


def _has_ids(source: Delta) -> bool:
    """Whether the source keeps the id of each value in a column."""
    declared = catalog.load().tables.get(source.table)
    return bool(declared and any(topic.schema_ids for topic in declared.topics))


# After this long without progress, the completed tasks of a query count as progress. Asking for them costs more.
SILENT_SECONDS = 20
NEWEST_JOBS = 3
# As many reports as Spark keeps (`spark.sql.streaming.numRecentProgressUpdates`).
KEPT_BATCHES = 500
# How long a flow that is run by hand waits for the first load of what it looks into: a flow above it may be at work.
BY_HAND_SECONDS = 10
# How long an idle query takes to stop on a busy machine.
STOP_SECONDS = 2
# For so many batches after a start that looks for failing rows, a flow builds its plan for each batch.
ISOLATED_BATCHES = 100


class BatchCounts(NamedTuple):
    """What a driver counts of a batch. read, written: rows; 0 and None where it does not know. seconds: since the batch
    before it began; None for the first one of a query.
    """

    read: int
    written: int | None
    seconds: float | None


@dataclass
class RunningFlow:
    """A running flow. order: what was wanted when it started. must_end: stops at the gate before the next batch.
    once: reads its source to the end, then stops. needs_new_plan: it has stopped at a batch that needs another query.
    isolates: its batches get the rows of the source, among which to find those that make one fail.

    error: what its batch function raised. journaled_timestamp: of the newest progress report in the journal, written at
    `journaled_at`. counts: of the newest batches, because Spark counts no rows that the fast path reads, and no rows
    that a batch function writes. batches_done: how many it has read in all. has_loaded: its first batch need not wait
    any more for what it looks into.
    """

    spark: SparkSession
    table: Flow
    order: Order
    generation: int
    once: bool = False
    needs_new_plan: bool = False
    isolates: bool = False
    query: StreamingQuery = field(init=False)
    batch_function: BatchFunction = field(init=False)
    must_end: bool = False
    is_stopped_at_gate: bool = False
    error: Exception | None = None
    batch: int | None = None
    journaled_timestamp: str | None = None
    journaled_at: float = 0.0
    counts: dict[int, BatchCounts] = field(default_factory=dict)
    batches_done: int = 0
    has_loaded: bool = False
    _batch_began_at: float | None = None
    _thread: Any = None
    _gate_polls: int = 0
    _tasks: tuple[Any, ...] = ()
    _last_progress: Any = None
    _last_progress_at: float = field(default_factory=time.monotonic)
    _stop_thread: threading.Thread | None = None
    _is_hang_logged: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether its query may still write. Spark's `isActive` is false as soon as the query was asked to stop."""
        if self._thread is None:
            self._thread = self.query._jsq.streamingQuery().queryExecutionThread()
        return bool(self._thread.isAlive())

    @property
    def starts_again(self) -> bool:
        """Whether its query has ended because it needs another plan. A query that fails at its source's columns before
        its first batch would fail again.
        """
        if self.needs_new_plan or self.batch is None or self.query.exception() is None:
            return self.needs_new_plan
        error = failure.of_query(self.table.flow, self.query, self.error, self.table)
        return getattr(error, "error", "").startswith(failure.COLUMNS_CHANGED)

    @property
    def silent_seconds(self) -> float:
        """Seconds since it last showed progress."""
        return time.monotonic() - self._last_progress_at

    def has_progressed(self) -> bool:
        """Whether it has progressed since the last call."""
        if self.silent_seconds > SILENT_SECONDS:
            self._tasks = self._completed_tasks()
        progress = (self.batch, self._gate_polls, self.journaled_timestamp, self._tasks)
        if progress == self._last_progress:
            return False
        self._last_progress, self._last_progress_at = progress, time.monotonic()
        return True

    def poll_gate(self) -> bool:
        """Called at each poll of the gate. Returns whether to go on waiting; a poll counts as progress."""
        self._gate_polls += 1
        return not self.must_end

    def note_counts(self, batch: int, began_at: float, read: int, written: int | None) -> None:
        """began_at: when its batch function was called, by the monotonic clock."""
        seconds = None if self._batch_began_at is None else began_at - self._batch_began_at
        self._batch_began_at = began_at
        self.batches_done += 1
        self.counts[batch] = BatchCounts(read, written, seconds)
        self.counts.pop(batch - KEPT_BATCHES, None)

    def end(self) -> None:
        """Ends the query before its next batch: at the gate, or now if it is idle. Finishes a running batch first,
        unless that has made no progress for `SILENT_SECONDS`.
        """
        self.must_end = True
        if not self.query.status["isTriggerActive"] or self.silent_seconds > SILENT_SECONDS:
            self.is_stopped_at_gate = True
            if self._stop_thread is None or not self._stop_thread.is_alive():
                # In a thread, because a hanging query answers after half a minute, and the driver has other flows.
                self._stop_thread = threading.Thread(target=self._stop, daemon=True)
                self._stop_thread.start()
                self._stop_thread.join(STOP_SECONDS)

    def close(self) -> None:
        """Frees what its ended query holds, in both heaps. A query that hangs keeps it, because it may go on."""
        if not self.is_alive:
            self.batch_function.close()

    def _stop(self) -> None:
        try:
            self.query.stop()
        except (Py4JError, PySparkException, OSError) as error:
            if not self._is_hang_logged:
                # Spark's error shows the stack of the query's thread.
                logs.error(
                    f"its query was asked to stop and hangs, so it keeps its lease and nobody else may write: restart "
                    f"its driver where that lasts\n{error}",
                    self.table.flow,
                )
            self._is_hang_logged = True

    def _completed_tasks(self) -> tuple[Any, ...]:
        """Returns the number of completed tasks in each stage of its newest jobs."""
        tracker = self.spark.sparkContext.statusTracker()
        jobs = sorted(tracker.getJobIdsForGroup(str(self.query.runId)))[-NEWEST_JOBS:]
        stages = [stage for job in jobs if (job_info := tracker.getJobInfo(job)) for stage in job_info.stageIds]
        return tuple((stage, info.numCompletedTasks) for stage in stages if (info := tracker.getStageInfo(stage)))


def start(
    spark: SparkSession,
    table: Flow,
    claim: Checkpoint,
    renewer: LeaseRenewer,
    order: Order,
    pacer: Pacer,
    once: bool,
    isolates: bool = False,
    may_wait: bool = True,
) -> RunningFlow:
    """Starts the query. The caller holds the flow's lease. once, isolates: as for `RunningFlow`. may_wait: whether the
    flow waits for the first load of what it looks into; else it raises Unreachable.
    """
    context = FlowContext(table, claim, renewer.epoch(table.flow))
    lock_request = _lock_request(spark, table)
    flow = RunningFlow(spark, table, order, claim.generation, once, isolates=isolates)
    topics = broker.Topics(cluster.of(table.source_as(Kafka))) if table.source.reads_topics else None

    def write(rows: DataFrame, batch_id: int) -> None:
        flow.batch, began_at = batch_id, time.monotonic()
        try:
            may_begin = batch_id <= claim.written or _await_first_load(load, rows, renewer, flow, may_wait)
            if not may_begin or not renewer.enter(lock_request, flow.poll_gate, flow.order):
                flow.is_stopped_at_gate = True
                raise InterruptedError(f"{table.flow} was asked to stop")
            if schemas and schemas.needs_new_plan(batch_id):
                flow.is_stopped_at_gate = flow.needs_new_plan = True
                raise InterruptedError(f"{table.flow} starts again, to read a schema that its plan lacks")
            pacer.begin(table.flow)
            if topics:
                _check_topics(context, batch_id, topics)
            if isolates and batch_id > claim.written + ISOLATED_BATCHES:
                flow.is_stopped_at_gate = flow.needs_new_plan = True
                flow.isolates = False
                raise InterruptedError(f"{table.flow} starts again, as no row has failed for a while")
            try:
                batch.write(rows, batch_id, context)
            except SourceRowsNeeded as needed:
                flow.is_stopped_at_gate = flow.needs_new_plan = flow.isolates = True
                raise InterruptedError(f"{table.flow} starts again, to find the row that fails") from needed
            flow.note_counts(batch_id, began_at, context.rows_before, context.rows_written)
            pacer.commit(table.flow)
            # In the query's own session: other flows of this driver may compact their tables at the same time.
            _compact(rows.sparkSession, table, batch_id, context.newest)
        except Exception as error:
            # Spark wraps the error in a page of text.
            flow.error = error
            raise
        finally:
            renewer.leave(table.flow)

    # Jobs of one flow share a scheduler pool, so that flows get the cores in turn.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", table.flow)
    rows, schemas = _rows(spark, context, isolates)
    load = _first_load(table, claim)
    flow.batch_function = BatchFunction(spark, write)
    writer = rows.writeStream.queryName(table.flow).option("checkpointLocation", str(claim.path))
    flow.query = pacer.start(writer.foreachBatch(flow.batch_function), table, once)
    return flow


def _first_load(table: Flow, claim: Checkpoint) -> FirstLoad | None:
    """Returns what the flow's first batch with rows waits for; None for a flow that does not wait."""
    engine = database.connect(settings().control_url)
    # A full refresh, whose shadow table is in no layer, is of a table that has waited.
    has_begun = claim.last_commit is not None and first_load.has_begun(table)
    if table.layer not in LAYERS or not first_load.tables_of(table) or has_begun:
        first_loads.forget(engine, table.flow)
        return None
    return FirstLoad(engine, catalog.load(), table, table.flow, first_load.life_of(table, claim.generation))


def _await_first_load(
    load: FirstLoad | None, rows: DataFrame, renewer: LeaseRenewer, flow: RunningFlow, may_wait: bool
) -> bool:
    """Waits until the flow may write its first batch with rows. Returns False if it must stop."""
    if load is None or flow.has_loaded or rows.isEmpty():
        return True
    deadline = math.inf if may_wait else time.monotonic() + BY_HAND_SECONDS
    flow.has_loaded = renewer.wait(
        flow.table.flow, load.is_over, lambda: flow.poll_gate() and time.monotonic() < deadline
    )
    if not flow.has_loaded and not flow.must_end and not may_wait:
        load.require()
        flow.has_loaded = True
    return flow.has_loaded


def _lock_request(spark: SparkSession, table: Flow) -> LockRequest:
    is_conditional = late_commits_fail(spark)
    is_alone = table_survey.needs_exclusive_write(table, is_conditional)
    return LockRequest(table.flow, table.name, is_alone, is_conditional)


def _rows(spark: SparkSession, context: FlowContext, isolates: bool) -> tuple[DataFrame, FlowSchemas | None]:
    """Returns the rows of the source, with the columns of `prepare.prepared` if these suit every batch. Also returns
    the schemas of a registry that these columns read; without them, each batch asks for those of its own rows.
    isolates: without these columns.
    """
    context.fast_path = path.of(spark, context.table)
    rows = readers.of(context.table).stream(spark, is_new=context.checkpoint.committed < 0)
    schemas = of(context.table, context.checkpoint) if context.fast_path and not isolates else None
    if isolates or not context.fast_path or (schemas is None and uses_registry(context.table)):
        return rows, None
    prepared_rows = prepare.prepared(rows, schemas.table if schemas else context.table)
    context.is_prepared = prepared_rows is not None
    return (rows, None) if prepared_rows is None else (prepared_rows, schemas)


def _compact(spark: SparkSession, table: Flow, batch_id: int, newest: int | None) -> None:
    """Compacts the table every `every_batches` batches, if the policy lets the flow do it, and forgets late deletes.

    newest: the watermark time, in microseconds since 1970.
    """
    if (batch_id + 1) % table.maintain.every_batches:
        return
    try:
        retained.forget_late(spark, table, newest, {"forgets": table.name, "batch": batch_id})
        # A table that its stream compacts is so on any store.
        place, _ = table_survey.place_of_compaction(table, late_commits_fail=False)
        if place is not CompactionPlace.INLINE:
            return
        engine = database.connect(settings().control_url)
        compaction = table_survey.survey(engine, table, catalog.load())[0].compaction
        if compaction.is_worth_it:
            logs.info(compaction.why, table.name)
            maintain.compact(spark, table.name, compaction, {"inline": table.name, "batch": batch_id})
    except Exception as error:
        # The batch is committed already, and any error here would end its flow.
        logs.warning(f"its table was not compacted afterwards: {error}", table.name, batch_id)


def _check_topics(context: FlowContext, batch_id: int, topics: broker.Topics) -> None:
    """Raises FlowBroken if a topic was recreated since the last batch; records new topics in the checkpoint."""
    end_offset = checkpoint_files.end_offset(context.checkpoint.path, batch_id) or {}
    try:
        ids = {"topics": topics.ids(end_offset)}
    except (Unreachable, AccessRefused):
        # The reads of the batch fail by themselves where the broker does not let them in.
        return
    require_unreplaced(context.table, context.checkpoint.source, ids)
    if new_topics := added(context.checkpoint.source, ids):
        context.checkpoint = add_topics(context.checkpoint, context.table, new_topics)
