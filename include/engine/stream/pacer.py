"""Begins the batches of a driver's flows: of a root when its interval is over, of others when their source commits.

Where Spark's triggers cannot be begun at will, each query goes on at the interval that its table declares.
"""

import math
import os
import sys
import threading
import time

from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from include.engine.stream import pace, trigger_clock
from include.engine.stream.trigger_times import Beat
from include.spec import Delta, Table

PROBLEM_SECONDS = 1
# The most that Spark is told to wait between two triggers, whatever the table declares: its first wait may have begun
# before the pacer takes over, and nothing ends that one.
MOST_FIRST_SECONDS = 1.0


class Pacer:
    """Of one driver. Its thread tells the queries when; the queries' own threads tell it of their batches."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._beats: dict[str, Beat] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_stopped = False
        self._problem: str | None = None
        self._is_able: bool | None = None

    def start(self, writer: DataStreamWriter, table: Table, once: bool) -> StreamingQuery:
        """Start a flow's query. once: it reads its source to the end, without a pause."""
        with self._changed:
            beat = self._beats[table.flow] = Beat(table, table.interval_seconds)
            self._link()
        if once:
            return writer.trigger(availableNow=True).start()
        if not self._has_clocks():
            return writer.trigger(processingTime=f"{table.interval_seconds} seconds").start()
        query = writer.trigger(processingTime=f"{_first_seconds(table)} seconds").start()
        with self._changed:
            beat.query = query
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pacer", daemon=True)
                self._thread.start()
            self._changed.notify()
        return query

    def _has_clocks(self) -> bool:
        if self._is_able is None:
            missing = trigger_clock.unexpected(self._spark)
            self._is_able = missing is None
            if missing:
                self._say(missing)
        return self._is_able

    def remove(self, flow: str) -> None:
        """A flow whose query has ended."""
        with self._changed:
            self._beats.pop(flow, None)
            self._link()

    def begin(self, flow: str) -> None:
        """Its batch has passed the gate."""
        with self._changed:
            self._beats[flow].begin()

    def commit(self, flow: str) -> None:
        """Its batch is committed, which wakes the flows of this driver that read its table."""
        with self._changed:
            self._beats[flow].commit()
            self._adapt()
            self._changed.notify()

    def intervals(self) -> dict[str, float]:
        """By flow, the seconds from one batch to the next while rows come; as declared, where others set the pace."""
        with self._changed:
            return {
                flow: beat.table.interval_seconds if beat.writers else beat.interval_seconds
                for flow, beat in self._beats.items()
            }

    def stop(self) -> None:
        """Begin nothing any more."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        if self._thread:
            self._thread.join()

    def _link(self) -> None:
        beats = self._beats.values()
        readers: dict[str, tuple[Beat, ...]] = {}
        for beat in beats:
            if isinstance(source := beat.table.source, Delta):
                readers[source.table] = (*readers.get(source.table, ()), beat)
        for beat in beats:
            beat.readers = readers.get(beat.table.name, ())
        for beat in beats:
            beat.writers = tuple(other for other in beats if beat in other.readers)
        self._adapt()

    def _adapt(self) -> None:
        beats = self._beats.values()
        found = pace.intervals({beat.table.flow: beat.root for beat in beats if not beat.writers}, os.cpu_count() or 1)
        for beat in beats:
            beat.adapt(found)

    def _run(self) -> None:
        while self._wait():
            for beat in self._due():
                try:
                    self._tell(beat)
                except Exception as error:
                    # Of whatever kind: without this thread, all flows would stand still.
                    self._say(error)
                    threading.Event().wait(PROBLEM_SECONDS)

    def _wait(self) -> bool:
        """Until a flow is to be looked at; returns whether to go on."""
        with self._changed:
            while not self._is_stopped:
                at = min((beat.due_at() for beat in self._beats.values()), default=math.inf)
                seconds = at - time.monotonic()
                if seconds <= 0:
                    break
                self._changed.wait(None if math.isinf(seconds) else seconds)
            return not self._is_stopped

    def _due(self) -> list[Beat]:
        with self._changed:
            now = time.monotonic()
            looked_at = [beat for beat in self._beats.values() if beat.due_at() <= now]
            return [beat for beat in looked_at if beat.is_due()]

    def _tell(self, beat: Beat) -> None:
        if beat.clock:
            beat.tell()
            return
        assert beat.query
        beat.clock = trigger_clock.take(self._spark, beat.query, _first_seconds(beat.table))

    def _say(self, problem: object) -> None:
        """Once, not for each flow and each time."""
        if str(problem) != self._problem:
            self._problem = str(problem)
            print(f"sluice: flows do not begin when their sources commit: {problem}", file=sys.stderr, flush=True)


def _first_seconds(table: Table) -> float:
    return min(table.interval_seconds, MOST_FIRST_SECONDS)
