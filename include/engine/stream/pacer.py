"""Starts the batches of a driver's flows: a root's at its interval, the others' when their source commits.

If Spark's triggers cannot be controlled, each query keeps the interval that its table declares.
Intervals are computed from numbers alone. A root is a flow whose source no other flow of the driver writes. Under load
roots begin batches less often, and batches grow. Durations of batches that ran side by side, or that compiled their
code, are longer than their work. So no root waits longer for a driver that runs nothing than `rest_seconds` says.
"""

import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from include import logs
from include.engine.stream import trigger_clock
from include.engine.stream.trigger_clock import TriggerClock
from include.lake import locations
from include.lake.paths import LakePath
from include.spec import Flow

# Share of the cores that a driver's batches may use while rows arrive all the time.
BUSY_SHARE = 0.6
# A root waits at most this long, or this many of its rounds, under any load.
LONGEST_INTERVAL_SECONDS = 10.0
MOST_ROUNDS = 4
# Weight of the newest batch in the running mean.
NEWEST_SHARE = 1 / 3


@dataclass(frozen=True)
class Root:
    """interval_seconds: what the table declares. round_seconds: mean duration of a trigger with the batches that it
    causes.
    """

    interval_seconds: float
    round_seconds: float


def intervals(roots: Mapping[str, Root], cores: int) -> dict[str, float]:
    """Returns the seconds between two triggers of each root, at least what it declares.

    The rounds of all roots may use `BUSY_SHARE` of the cores. If they need more, the roots that trigger most often
    share one longer interval; a root that declares a longer one keeps it.
    """
    shared = _shared_interval(list(roots.values()), BUSY_SHARE * cores)
    return {
        name: max(root.interval_seconds, min(shared, max(LONGEST_INTERVAL_SECONDS, MOST_ROUNDS * root.round_seconds)))
        for name, root in roots.items()
    }


def _shared_interval(roots: list[Root], busy_cores: float) -> float:
    """Returns the smallest shared interval at which `busy_cores` suffice for the rounds of all roots."""
    ordered = sorted(roots, key=lambda root: root.interval_seconds)
    shared = 0.0
    for index, root in enumerate(ordered):
        load_of_slower = sum(other.round_seconds / other.interval_seconds for other in ordered[index:])
        sharing_seconds = sum(other.round_seconds for other in ordered[:index])
        if load_of_slower < busy_cores and sharing_seconds / (busy_cores - load_of_slower) <= root.interval_seconds:
            return sharing_seconds / (busy_cores - load_of_slower)
        shared = (sharing_seconds + root.round_seconds) / busy_cores
    return shared


def smoothed(mean: float | None, newest: float) -> float:
    """Returns the running mean after `newest`. mean: the mean before; None if there is none."""
    return newest if mean is None else mean + NEWEST_SHARE * (newest - mean)


def rest_seconds(busy_seconds: float) -> float:
    """Returns for how long a driver may run no batch, after so many seconds in which it ran at least one.

    That leaves it `BUSY_SHARE` of the time.
    """
    return max(LONGEST_INTERVAL_SECONDS, busy_seconds * (1 / BUSY_SHARE - 1))


# Pauses of a topic or folder without new records double up to this, and those of a table in a store that no flow of the
# driver writes. Looking for new ones costs Spark 10 ms, and for such a table a request.
IDLE_SECONDS = 4.0
# An unchanged table is triggered at least this often, so that the query shows progress.
UNCHANGED_SECONDS = 10.0
# After a batch that reached its limits, a flow waits this many intervals for a commit before it reads the rest.
REST_INTERVALS = 1.5
# How often a starting query is checked for its clock.
TAKE_SECONDS = 0.2
# The file system's clock is coarse: a log that changed just now may change again with the same time.
FILE_CLOCK_SECONDS = 0.1


@dataclass(eq=False)
class FlowTrigger:
    """The trigger of one flow. Moments are those of the monotonic clock.

    interval_seconds: in force now. batch_seconds: running mean of batch durations. busy_share: share of triggers that
    found rows. has_new_commit: the source has a commit since the last trigger. has_begun_batch: the last trigger has
    begun a batch. idle_seconds: pause while no rows arrive. log_mtime_ns: of the source's log at the last trigger.
    readers, writers: the driver's flows that read its table, and that write its source.
    """

    table: Flow
    interval_seconds: float
    query: StreamingQuery | None = None
    clock: TriggerClock | None = None
    readers: tuple["FlowTrigger", ...] = ()
    writers: tuple["FlowTrigger", ...] = ()
    batch_seconds: float | None = None
    busy_share: float = 1.0
    is_running_batch: bool = False
    has_new_commit: bool = False
    has_begun_batch: bool = True
    began_at: float = 0.0
    checked_at: float = 0.0
    fired_at: float = field(default_factory=time.monotonic)
    idle_seconds: float = 0.0
    log_mtime_ns: int | None = None

    @property
    def root(self) -> Root:
        return Root(self.table.interval_seconds, self.busy_share * self._round_seconds_with_readers())

    def _round_seconds_with_readers(self) -> float:
        """Mean duration of its batch and of those that it causes."""
        return (self.batch_seconds or 0.0) + sum(reader._round_seconds_with_readers() for reader in self.readers)

    def set_interval(self, root_intervals: dict[str, float]) -> float:
        """Sets its interval from those of the roots, in seconds, and returns it."""
        declared_seconds = self.table.interval_seconds
        if self.clock is None:
            self.interval_seconds = declared_seconds
        elif self.writers:
            self.interval_seconds = max(
                declared_seconds, min(writer.set_interval(root_intervals) for writer in self.writers)
            )
        else:
            self.interval_seconds = root_intervals[self.table.flow]
        return self.interval_seconds

    def begin(self) -> None:
        self.began_at, self.is_running_batch = time.monotonic(), True
        self.has_begun_batch, self.idle_seconds = True, 0.0

    def commit(self) -> None:
        self.is_running_batch = False
        self.batch_seconds = smoothed(self.batch_seconds, time.monotonic() - self.began_at)
        for reader in self.readers:
            reader.has_new_commit = True

    def due_at(self, rested_at: float = math.inf) -> float:
        """Returns the moment at which to check it. rested_at: when its driver has rested for as long as it may."""
        if self.query is None or self.is_running_batch:
            return math.inf
        if self.clock is None:
            return self.checked_at + TAKE_SECONDS
        declared_seconds = self.table.interval_seconds
        if self.has_new_commit:
            # A longer interval of its own applies. A shorter one does not: both pauses would add up.
            return self.began_at + (declared_seconds if declared_seconds > self._source_interval() else 0.0)
        if self.writers or (isinstance(self._log, Path) and not self.has_begun_batch):
            # Another driver or job may commit to its source. In a store, each check would cost a request.
            return max(self.checked_at, self.began_at) + declared_seconds
        rested_at = max(rested_at, self.fired_at + declared_seconds)
        if self.has_begun_batch:
            return min(self.fired_at + self.interval_seconds, rested_at)
        # Under load, batches are far apart. A look that finds no rows costs little, and need not wait as long.
        batch_at = min(self.began_at + self.interval_seconds, rested_at)
        return max(batch_at, self.fired_at + max(declared_seconds, self.idle_seconds))

    def is_due(self) -> bool:
        """Returns whether its next trigger is due. Notes the time of the check."""
        self.checked_at = now = time.monotonic()
        if self.has_new_commit or not self.table.source.reads_table:
            return True
        if self.has_begun_batch and now > self.began_at + REST_INTERVALS * self._source_interval():
            return True
        mtime_ns = self._log_mtime_ns()
        return mtime_ns is None or mtime_ns != self.log_mtime_ns or now > self.fired_at + UNCHANGED_SECONDS

    def fire(self) -> None:
        """Starts its next trigger."""
        assert self.clock
        self.log_mtime_ns = self._log_mtime_ns()
        self.busy_share = smoothed(self.busy_share, float(self.has_begun_batch))
        self.idle_seconds = min(IDLE_SECONDS, max(2 * self.idle_seconds, self.interval_seconds))
        self.fired_at, self.has_new_commit, self.has_begun_batch = time.monotonic(), False, False
        self.clock.fire()

    def _source_interval(self) -> float:
        return min((writer.interval_seconds for writer in self.writers), default=0.0)

    @property
    def _log(self) -> LakePath | None:
        """The log of its source; None if that is no table."""
        source = self.table.source
        return locations.table_path(source.table) / "_delta_log" if source.reads_table else None

    def _log_mtime_ns(self) -> int | None:
        """Returns when the source's log last changed, in nanoseconds since 1970; None if that is uncertain."""
        if self._log is None:
            return None
        if not isinstance(self._log, Path):
            # A store does not know. The flows that write the source tell what they commit, and others are met later.
            return 0 if self.writers else None
        try:
            mtime_ns = self._log.stat().st_mtime_ns
        except OSError:
            return None
        return mtime_ns if time.time() - mtime_ns / 1e9 > FILE_CLOCK_SECONDS else None


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
        # Since when it runs batches without a break, None while it runs none; and until when such a break may last.
        self._busy_since: float | None = None
        self._rested_at = math.inf

    def start(self, writer: DataStreamWriter, table: Flow, once: bool) -> StreamingQuery:
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
            self._rest()
            self._changed.notify()

    def begin(self, flow: str) -> None:
        """Notes that the flow's batch has passed the gate."""
        with self._changed:
            self._triggers[flow].begin()
            if self._busy_since is None:
                self._busy_since, self._rested_at = time.monotonic(), math.inf

    def commit(self, flow: str) -> None:
        """Notes that the flow's batch is committed, which triggers the driver's flows that read its table."""
        with self._changed:
            self._triggers[flow].commit()
            self._set_intervals()
            self._rest()
            self._changed.notify()

    def _rest(self) -> None:
        """Note that the driver runs no batch, if that is so."""
        since, now = self._busy_since, time.monotonic()
        if since is not None and not any(trigger.is_running_batch for trigger in self._triggers.values()):
            self._busy_since, self._rested_at = None, now + rest_seconds(now - since)

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
            query, is_due_later = trigger.query, trigger.due_at(self._rested_at) > time.monotonic()
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
            for source in trigger.table.upstream:
                readers[source.table] = (*readers.get(source.table, ()), trigger)
        for trigger in triggers:
            trigger.readers = readers.get(trigger.table.name, ())
        for trigger in triggers:
            trigger.writers = tuple(other for other in triggers if trigger in other.readers)
        self._set_intervals()

    def _set_intervals(self) -> None:
        triggers = self._triggers.values()
        root_intervals = intervals(
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
                due_at = (trigger.due_at(self._rested_at) for trigger in self._triggers.values())
                seconds = min(due_at, default=math.inf) - time.monotonic()
                if seconds <= 0:
                    break
                self._changed.wait(None if math.isinf(seconds) else seconds)
            return not self._is_stopped

    def _due(self) -> list[FlowTrigger]:
        with self._changed:
            now = time.monotonic()
            candidates = [trigger for trigger in self._triggers.values() if trigger.due_at(self._rested_at) <= now]
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


def _first_seconds(table: Flow) -> float:
    return min(table.interval_seconds, MOST_FIRST_SECONDS)
