"""Ends a query's wait between two triggers at any moment; Spark itself only has fixed intervals.

Spark's `ProcessingTimeExecutor` waits on a clock. This module replaces the clock by one that stands still, and advances
it when the next trigger is due. No other module uses these internals of Spark.
"""

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from include.engine.session import jvm_of

EXECUTOR = "org.apache.spark.sql.execution.streaming.runtime.ProcessingTimeExecutor"
FIELD, CLOCK = "clock", "org.apache.spark.util.Clock"
MANUAL_CLOCK = "org.apache.spark.util.ManualClock"


class TriggerClock:
    """The clock of one query, which runs with `ProcessingTime(interval_seconds)`."""

    def __init__(self, clock: JavaObject, interval_seconds: float) -> None:
        self._clock = clock
        self._interval_ms = max(1, int(interval_seconds * 1000))

    def fire(self) -> None:
        """Starts the next trigger at once, or right after the current one. Two calls during one trigger start
        one more.
        """
        self._clock.advance(self._interval_ms)


def unexpected(spark: SparkSession) -> str | None:
    """Returns a sentence about what differs in Spark's internals; None if nothing does."""
    if not jvm_of(spark).org.apache.spark.util.Utils.classIsLoadable(MANUAL_CLOCK):
        return f"this Spark has no {MANUAL_CLOCK}"
    try:
        clock_class = _class(spark, EXECUTOR).getDeclaredField(FIELD).getType().getName()
    except Py4JError:
        return f"this Spark has no field '{FIELD}' in {EXECUTOR}"
    return None if clock_class == CLOCK else f"the field '{FIELD}' of {EXECUTOR} is of {clock_class}"


def take(spark: SparkSession, query: StreamingQuery, interval_seconds: float) -> TriggerClock | None:
    """Replaces the clock of the query's triggers, whose interval is given in seconds. Returns None if they have not
    begun.

    The executor may be waiting on its own clock already, for one interval at most, so the interval should be short.
    """
    executor = query._jsq.streamingQuery().triggerExecutor()
    if executor is None:
        return None
    field = _class(spark, EXECUTOR).getDeclaredField(FIELD)
    field.setAccessible(True)
    # The new clock shows the present, so every later wait ends within one interval of it.
    clock = jvm_of(spark).org.apache.spark.util.ManualClock(jvm_of(spark).java.lang.System.currentTimeMillis())
    field.set(executor, clock)
    return TriggerClock(clock, interval_seconds)


def _class(spark: SparkSession, name: str) -> JavaObject:
    return jvm_of(spark).org.apache.spark.util.Utils.classForName(name, False, False)
