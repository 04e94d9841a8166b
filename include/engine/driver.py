"""A Spark driver that hosts flows: takes their leases, runs their queries, and never outlives its right to write."""

import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Never

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from include import catalog
from include.control import database, supervision
from include.control.keeper import Keeper
from include.control.process import Holder, Process
from include.engine import batch, checkpoint, read, storage
from include.engine.batch import Life
from include.engine.session import open_session
from include.errors import FlowFailed, LeaseHeld, LeaseLost, SluiceError, Unreachable
from include.ledger import kafka
from include.settings import settings
from include.spec import Kafka, Table

POLL_SECONDS = 1
HALT_SECONDS = 2
SENTENCE_CHARACTERS = 300


def run(flows: list[Table], name: str, once: bool) -> None:
    """Host `flows`, given in graph order, until stopped; with `once`, until each has read its source to the end.

    Raises LeaseHeld before anything is touched, Unreachable, and FlowFailed for the first flow whose query fails.
    """
    engine = database.connect(settings().control_url)
    try:
        for table in flows:
            if isinstance(table.source, Kafka):
                kafka.check_topic(settings().kafka, table.source.topic)
        jvm = jvm_pid()
        ttl_seconds = settings().lease_seconds
        keeper = Keeper(engine, Holder.here(name, jvm), ttl_seconds, lambda reason: _halt(jvm, reason))
        keeper.take([table.name for table in flows])
        keeper.start()
        try:
            host = Host(open_session(f"sluice {name}", catalog.load()), keeper)
            try:
                host.run_once(flows) if once else host.run(flows)
            finally:
                # Before the leases go back: nothing of this driver may write after that.
                host.stop()
        finally:
            keeper.stop()
    except SluiceError as error:
        with suppress(Unreachable):
            supervision.record_failure(engine, name, str(error))
        raise


class Host:
    """The flows of one driver."""

    def __init__(self, spark: SparkSession, keeper: Keeper) -> None:
        self._spark = spark
        self._keeper = keeper
        self._jvm = Process.of(jvm_pid())
        self._queries: dict[str, StreamingQuery] = {}
        self._stopping: set[str] = set()
        self._errors: dict[str, Exception] = {}

    def run(self, flows: list[Table]) -> None:
        """All flows side by side, until none is wanted. One that was stopped starts again when it is wanted again."""
        for table in flows:
            self._queries[table.name] = self._start(table, once=False)
        print(f"sluice: {', '.join(self._queries)} running", flush=True)
        while self._queries:
            for table in flows:
                self._tend(table)
            threading.Event().wait(POLL_SECONDS)

    def _tend(self, table: Table) -> None:
        flow, query = table.name, self._queries.get(table.name)
        wanted = self._keeper.is_wanted(flow)
        if query is None:
            if wanted and self._take(flow):
                self._queries[flow] = self._start(table, once=False)
        elif not query.isActive:
            self._check(flow, query)
            del self._queries[flow]
            self._keeper.give_back([flow])
        elif not wanted and not query.status["isTriggerActive"]:
            # Idle, so it would not come to the gate; a batch that begins now is turned away there.
            self._stopping.add(flow)
            query.stop()

    def _take(self, flow: str) -> bool:
        """Whether the lease could be had: somebody else may have taken it meanwhile."""
        try:
            self._keeper.take([flow])
        except (LeaseHeld, Unreachable):
            return False
        return True

    def run_once(self, flows: list[Table]) -> None:
        """One flow after the other, each to the end of what its source holds now."""
        for table in flows:
            query = self._queries[table.name] = self._start(table, once=True)
            while query.isActive:
                threading.Event().wait(POLL_SECONDS)
            self._check(table.name, query)

    def _start(self, table: Table, once: bool) -> StreamingQuery:
        storage.create(self._spark, table)
        claimed = checkpoint.claim(self._spark, table)
        self._stopping.discard(table.name)
        life = Life(table, claimed, self._keeper.epoch(table.name))

        def write(rows: DataFrame, number: int) -> None:
            if not self._keeper.pass_gate(table.name):
                self._stopping.add(table.name)
                raise InterruptedError(f"{table.name} was asked to stop")
            try:
                batch.write(rows, number, life)
            except Exception as error:
                # Spark would wrap it in a page of text.
                self._errors[table.name] = error
                raise

        # Jobs of one flow share a pool, so that flows get the cores in turn.
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", table.name)
        writer = read.stream(self._spark, table).writeStream.queryName(table.name).foreachBatch(write)
        writer = writer.option("checkpointLocation", str(claimed.path))
        trigger = {"availableNow": True} if once else {"processingTime": f"{table.interval_seconds} seconds"}
        return writer.trigger(**trigger).start()

    def stop(self) -> None:
        """Return when no query can write any more; Spark's own end would not wait for them."""
        try:
            for query in self._queries.values():
                query.stop()
            self._spark.stop()
        except (Py4JError, PySparkException, OSError) as error:
            if self._jvm.is_alive:
                _halt(self._jvm.pid, f"a query cannot be stopped, and its lease must not be given back: {error}")

    def _check(self, flow: str, query: StreamingQuery) -> None:
        error = query.exception()
        if error is not None and flow not in self._stopping:
            cause = self._errors.get(flow, error)
            print(error, file=sys.stderr, flush=True)
            raise FlowFailed(f"{flow}: {_sentence(cause)} (the log has the rest)") from error


def _sentence(error: Exception) -> str:
    """Its innermost cause in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1].removeprefix("Caused by:").strip() if causes else lines[0])[:SENTENCE_CHARACTERS]


def jvm_pid() -> int:
    """The JVM this Python drives: spark-submit's own, or one that is started here."""
    SparkContext._ensure_initialized()
    return int(SparkContext._jvm.java.lang.ProcessHandle.current().pid())


def _halt(jvm: int, reason: str) -> Never:
    """End the JVM, then this process. Ending Python alone would leave the JVM committing."""
    print(f"sluice: this driver ends at once, because it may no longer write: {reason}", file=sys.stderr, flush=True)
    # `halt` gives spark-submit an exit code that says so; where the JVM does not answer, SIGKILL does it.
    polite = threading.Thread(
        target=lambda: SparkContext._jvm.java.lang.Runtime.getRuntime().halt(LeaseLost.exit_code), daemon=True
    )
    polite.start()
    polite.join(HALT_SECONDS)
    try:
        os.kill(jvm, signal.SIGKILL)
    finally:
        os._exit(LeaseLost.exit_code)
