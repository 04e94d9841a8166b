"""Ends a query's wait between two triggers at any moment: Spark itself knows intervals only.

The executor of a query's triggers waits on a clock of its own. A clock that stands still takes its place, and is
advanced when the next trigger is to begin. This module alone names what it needs of Spark's internals.
"""

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

EXECUTOR = "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor"
FIELD, CLOCK = "clock", "org.apache.spark.util.Clock"


class UnknownSpark(Exception):
    """This Spark has other internals than those that are known here."""


class TriggerClock:
    """Of one query, whose trigger declares this interval."""

    def __init__(self, clock: JavaObject, interval_seconds: float) -> None:
        self._clock = clock
        self._interval_ms = max(1, int(interval_seconds * 1000))

    def fire(self) -> None:
        """Begin the next trigger at once, or right after the one that runs. Asked twice meanwhile, it begins once."""
        self._clock.advance(self._interval_ms)


def take(spark: SparkSession, query: StreamingQuery, interval_seconds: float) -> TriggerClock | None:
    """Put the query's triggers, which come at this interval by now, under a clock; None before they have begun.

    Raises UnknownSpark; the query then goes on at its interval.
    """
    try:
        executor = query._jsq.streamingQuery().triggerExecutor()
        if executor is None:
            return None
        field = executor.getClass().getDeclaredField(FIELD)
        if executor.getClass().getName() != EXECUTOR or field.getType().getName() != CLOCK:
            raise UnknownSpark(f"triggers are executed by {executor.getClass().getName()}")
        field.setAccessible(True)
        # From now on: what the executor may wait for already lies at most one interval ahead.
        clock = spark._jvm.org.apache.spark.util.ManualClock(spark._jvm.java.lang.System.currentTimeMillis())
        field.set(executor, clock)
    except (Py4JError, TypeError) as error:
        # TypeError: py4j calls what it does not find a package.
        raise UnknownSpark(f"this Spark has no field '{FIELD}' in {EXECUTOR}, or no ManualClock") from error
    return TriggerClock(clock, interval_seconds)
