"""Starts the batches of a driver's flows: a root's at its interval, the others' when their source commits.

If Spark's triggers cannot be controlled, each query keeps the interval that its table declares.
"""

import math
import os
import threading
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from include import logs
from include.engine.stream import pace, trigger_clock
from include.engine.stream.trigger_times import FlowTrigger
from include.spec import Delta, Table

PROBLEM_SECONDS = 1
# Longest interval given to Spark, whatever the table declares. The first wait may begin before the pacer takes the
# clock, and nothing ends that wait early.
MOST_FIRST_SECONDS = 1.0


class Pacer:
    """Triggers the flows of one driver. Its thread fires the triggers; the queries' threads report their batches."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._triggers: dict[str, FlowTrigger] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._problem: str | None = None
        self._can_set_clocks: bool | None = None

    def start(self, writer: DataStreamWriter, table: Table, once: bool) -> StreamingQuery:
        """Starts a flow's query. once: it reads its source to the end without a pause (`availableNow`)."""
        with self._changed:
            trigger = self._triggers[table.flow] = FlowTrigger(table, table.interval_seconds)
            self._connect()
        if once:
            return writer.trigger(availableNow=True).start()
        if not self._supports_clocks():
            return writer.trigger(processingTime=f"{table.interval_seconds} seconds").start()
        query = writer.trigger(processingTime=f"{_first_seconds(table)} seconds").start()
        with self._changed:
            trigger.query = query
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pacer", daemon=True)
                self._thread.start()
            self._changed.notify()
        return query

    def _supports_clocks(self) -> bool:
        if self._can_set_clocks is None:
            missing = trigger_clock.unexpected(self._spark)
            self._can_set_clocks = missing is None
            if missing:
                self._log_problem(missing)
        return self._can_set_clocks

    def remove(self, flow: str) -> None:
        """Forgets a flow whose query has ended."""
        with self._changed:
            self._triggers.pop(flow, None)
            self._connect()

    def begin(self, flow: str) -> None:
        """Notes that the flow's batch has passed the gate."""
        with self._changed:
            self._triggers[flow].begin()

    def commit(self, flow: str) -> None:
        """Notes that the flow's batch is committed, which triggers the driver's flows that read its table."""
        with self._changed:
            self._triggers[flow].commit()
            self._set_intervals()
            self._changed.notify()

    def intervals(self) -> dict[str, float]:
        """Returns each flow's seconds between batches while rows arrive; the declared ones for flows that follow
        others.
        """
        with self._changed:
            return {
                flow: trigger.table.interval_seconds if trigger.writers else trigger.interval_seconds
                for flow, trigger in self._triggers.items()
            }

    def is_pausing(self, flow: str) -> bool:
        """Whether the flow's query waits for a trigger that is not due yet."""
        with self._changed:
            trigger = self._triggers.get(flow)
            if trigger is None or trigger.query is None or trigger.clock is None:
                return False
            query, is_due_later = trigger.query, trigger.due_at() > time.monotonic()
        return is_due_later and not query.status["isTriggerActive"]

    def stop(self) -> None:
        """Stops the pacer's thread; it fires no trigger after that."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        if self._thread:
            self._thread.join()

    def _connect(self) -> None:
        triggers = self._triggers.values()
        readers: dict[str, tuple[FlowTrigger, ...]] = {}
        for trigger in triggers:
            if isinstance(source := trigger.table.source, Delta):
                readers[source.table] = (*readers.get(source.table, ()), trigger)
        for trigger in triggers:
            trigger.readers = readers.get(trigger.table.name, ())
        for trigger in triggers:
            trigger.writers = tuple(other for other in triggers if trigger in other.readers)
        self._set_intervals()

    def _set_intervals(self) -> None:
        triggers = self._triggers.values()
        root_intervals = pace.intervals(
            {trigger.table.flow: trigger.root for trigger in triggers if not trigger.writers}, os.cpu_count() or 1
        )
        for trigger in triggers:
            trigger.set_interval(root_intervals)

    def _run(self) -> None:
        while self._wait():
            for trigger in self._due():
                try:
                    self._fire(trigger)
                except Exception as error:
                    # Any kind of error: without this thread no flow would begin another batch.
                    self._log_problem(error)
                    threading.Event().wait(PROBLEM_SECONDS)

    def _wait(self) -> bool:
        """Waits until a flow is to be checked; returns False once the pacer is stopped."""
        with self._changed:
            while not self._is_stopped:
                due_at = min((trigger.due_at() for trigger in self._triggers.values()), default=math.inf)
                seconds = due_at - time.monotonic()
                if seconds <= 0:
                    break
                self._changed.wait(None if math.isinf(seconds) else seconds)
            return not self._is_stopped

    def _due(self) -> list[FlowTrigger]:
        with self._changed:
            now = time.monotonic()
            candidates = [trigger for trigger in self._triggers.values() if trigger.due_at() <= now]
            return [trigger for trigger in candidates if trigger.is_due()]

    def _fire(self, trigger: FlowTrigger) -> None:
        if trigger.clock:
            trigger.fire()
            with self._changed:
                self._set_intervals()
            return
        assert trigger.query
        trigger.clock = trigger_clock.take(self._spark, trigger.query, _first_seconds(trigger.table))

    def _log_problem(self, problem: object) -> None:
        """Logs a problem once, not for every flow and trigger."""
        if str(problem) != self._problem:
            self._problem = str(problem)
            logs.warning(f"flows do not begin when their sources commit: {problem}")


def _first_seconds(table: Table) -> float:
    return min(table.interval_seconds, MOST_FIRST_SECONDS)
