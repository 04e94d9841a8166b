"""One flow in one process: its query, what it was told, and the signs of life it gives."""

import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from include import catalog
from include.control.lease_renewer import LeaseRenewer
from include.control.lock import LockRequest
from include.control.orders import Order
from include.control.store import database
from include.engine.batch import batch, prepare, read
from include.engine.batch.batch import FlowContext
from include.engine.checkpoints.checkpoint import Checkpoint, add_topics
from include.engine.fast_path import path
from include.engine.stream.pacer import Pacer
from include.engine.tables import maintain
from include.errors import SluiceError, Unreachable
from include.maintenance import policy, table_state
from include.maintenance.policy import Place
from include.readers import checkpoint as ledger
from include.readers import kafka_broker
from include.readers.topics import added, require_unreplaced
from include.settings import settings
from include.spec import Kafka, Table

# A query that has been silent for so long is asked for the tasks it has ended; that costs more than a glance.
SILENT_SECONDS = 20
NEWEST_JOBS = 3
# As many as Spark keeps reports of (`spark.sql.streaming.numRecentProgressUpdates`).
KEPT_BATCHES = 500
# As long as an idle query takes to stop on a busy machine.
STOP_SECONDS = 2


@dataclass
class Flow:
    """order: what was wanted when it started. must_end: it stops at the gate before its next batch.

    error: what its batch function raised. kept: the newest of its reports that is written down,
    as of `kept_at`. rows_read: by batch, what Spark does not count because it did not read it; of the newest batches.
    """

    spark: SparkSession
    table: Table
    order: Order
    generation: int
    query: StreamingQuery = field(init=False)
    must_end: bool = False
    is_stopped_at_gate: bool = False
    error: Exception | None = None
    batch: int | None = None
    kept: str | None = None
    kept_at: float = 0.0
    rows_read: dict[int, int] = field(default_factory=dict)
    _thread: Any = None
    _looks: int = 0
    _tasks: tuple[Any, ...] = ()
    _shown: Any = None
    _shown_at: float = field(default_factory=time.monotonic)
    _stopping: threading.Thread | None = None
    _is_named: bool = False

    @property
    def is_alive(self) -> bool:
        """Whether its query may still write. Spark's `isActive` says no as soon as somebody has asked for the end."""
        if self._thread is None:
            self._thread = self.query._jsq.streamingQuery().queryExecutionThread()
        return bool(self._thread.isAlive())

    @property
    def silent_seconds(self) -> float:
        """Since it last showed a sign of life that was new."""
        return time.monotonic() - self._shown_at

    def has_progressed(self) -> bool:
        """Whether it shows a sign of life that is new."""
        if self.silent_seconds > SILENT_SECONDS:
            self._tasks = self._tasks_ended()
        shown = (self.batch, self._looks, self.kept, self._tasks)
        if shown == self._shown:
            return False
        self._shown, self._shown_at = shown, time.monotonic()
        return True

    def waits(self) -> bool:
        """Asked at each look at the gate: whether it goes on waiting, which is a sign of life."""
        self._looks += 1
        return not self.must_end

    def note_read(self, batch: int, rows: int) -> None:
        self.rows_read[batch] = rows
        self.rows_read.pop(batch - KEPT_BATCHES, None)

    def end(self) -> None:
        """End it before its next batch: at the gate, or here where it is idle. A batch in hand is finished first,
        unless it has not moved for a while.
        """
        self.must_end = True
        if not self.query.status["isTriggerActive"] or self.silent_seconds > SILENT_SECONDS:
            self.is_stopped_at_gate = True
            if self._stopping is None or not self._stopping.is_alive():
                # In a thread: a query that hangs answers after half a minute, and its driver has others to look after.
                self._stopping = threading.Thread(target=self._stop, daemon=True)
                self._stopping.start()
                self._stopping.join(STOP_SECONDS)

    def _stop(self) -> None:
        try:
            self.query.stop()
        except (Py4JError, PySparkException, OSError) as error:
            if not self._is_named:
                # Spark tells what the query's thread is at.
                print(
                    f"sluice: {self.table.flow}: its query was asked to stop and hangs, so it keeps its lease and "
                    f"nobody else may write: restart its driver where that lasts\n{error}",
                    file=sys.stderr,
                    flush=True,
                )
            self._is_named = True

    def _tasks_ended(self) -> tuple[Any, ...]:
        """How far its newest jobs have come."""
        tracker = self.spark.sparkContext.statusTracker()
        jobs = sorted(tracker.getJobIdsForGroup(str(self.query.runId)))[-NEWEST_JOBS:]
        stages = [stage for job in jobs if (info := tracker.getJobInfo(job)) for stage in info.stageIds]
        return tuple((stage, info.numCompletedTasks) for stage in stages if (info := tracker.getStageInfo(stage)))


def start(
    spark: SparkSession, table: Table, claimed: Checkpoint, keeper: LeaseRenewer, order: Order, pacer: Pacer, once: bool
) -> Flow:
    """Start the query. The caller holds the flow's lease."""
    life = FlowContext(table, claimed, keeper.epoch(table.flow))
    entry = LockRequest(table.flow, table.name, alone=policy.writes_alone(table, settings().store))
    flow = Flow(spark, table, order, claimed.generation)
    topics = kafka_broker.Topics(settings().kafka)

    def write(rows: DataFrame, number: int) -> None:
        flow.batch = number
        try:
            if not keeper.enter(entry, flow.waits, flow.order):
                flow.is_stopped_at_gate = True
                raise InterruptedError(f"{table.flow} was asked to stop")
            pacer.begin(table.flow)
            _check_topics(life, number, topics)
            batch.write(rows, number, life)
            flow.note_read(number, life.rows_before)
            pacer.commit(table.flow)
            # In the query's own session: others of this driver may compact theirs at the same time.
            _compact(rows.sparkSession, table, number)
        except Exception as error:
            # Spark would wrap it in a page of text.
            flow.error = error
            raise
        finally:
            keeper.leave(table.flow)

    # Jobs of one flow share a pool, so that flows get the cores in turn.
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", table.flow)
    rows = _rows(spark, life)
    writer = rows.writeStream.queryName(table.flow).foreachBatch(write)
    writer = writer.option("checkpointLocation", str(claimed.path))
    flow.query = pacer.start(writer, table, once)
    return flow


def _rows(spark: SparkSession, life: FlowContext) -> DataFrame:
    """The rows of its source, prepared where that can be done once for all batches."""
    life.fast_path = path.of(spark, life.table)
    rows = read.stream(spark, life.table, begins=life.checkpoint.committed < 0)
    prepared = prepare.prepared(rows, life.table) if life.fast_path else None
    life.is_prepared = prepared is not None
    return rows if prepared is None else prepared


def _compact(spark: SparkSession, table: Table, number: int) -> None:
    """Now and then, where the policy says that the flow does it; it has the table to itself."""
    place, _ = policy.place_of_compaction(table, settings().store)
    if place is not Place.INLINE or (number + 1) % table.maintain.every_batches:
        return
    try:
        engine = database.connect(settings().control_url)
        found = table_state.look(engine, table, catalog.load())[0].compaction
        if found.is_worth_it:
            print(f"sluice: {table.name}: {found.why}", flush=True)
            maintain.compact(spark, table.name, found, {"inline": table.name, "batch": number})
    except (SluiceError, PySparkException) as error:
        # The batch has happened, and is no worse for it.
        print(f"sluice: {table.name} was not compacted after batch {number}: {error}", file=sys.stderr, flush=True)


def _check_topics(life: FlowContext, number: int, topics: kafka_broker.Topics) -> None:
    """Name a topic that was replaced since the last batch; remember those that are new."""
    if not isinstance(life.table.source, Kafka):
        return
    with suppress(Unreachable):
        spanned = ledger.end_offset(life.checkpoint.path, number) or {}
        now = {"topics": topics.ids(spanned)}
        require_unreplaced(life.table, life.checkpoint.source, now)
        if new := added(life.checkpoint.source, now):
            life.checkpoint = add_topics(life.checkpoint, life.table, new)
