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
MANUAL_CLOCK = "org.apache.spark.util.ManualClock"


class TriggerClock:
    """Of one query, whose trigger was given to Spark with this interval."""

    def __init__(self, clock: JavaObject, interval_seconds: float) -> None:
        self._clock = clock
        self._interval_ms = max(1, int(interval_seconds * 1000))

    def fire(self) -> None:
        """Begin the next trigger at once, or right after the one that runs. Asked twice meanwhile, it begins once."""
        self._clock.advance(self._interval_ms)


def unexpected(spark: SparkSession) -> str | None:
    """What of Spark's internals is not as this module expects it; None where all is."""
    if not spark._jvm.org.apache.spark.util.Utils.classIsLoadable(MANUAL_CLOCK):
        return f"this Spark has no {MANUAL_CLOCK}"
    try:
        found = _class(spark, EXECUTOR).getDeclaredField(FIELD).getType().getName()
    except Py4JError:
        return f"this Spark has no field '{FIELD}' in {EXECUTOR}"
    return None if found == CLOCK else f"the field '{FIELD}' of {EXECUTOR} is of {found}"


def take(spark: SparkSession, query: StreamingQuery, interval_seconds: float) -> TriggerClock | None:
    """Put the query's triggers, which come at this interval by now, under a clock; None before they have begun.

    The executor may already wait by its own clock: at most one interval, so that should be a short one.
    """
    executor = query._jsq.streamingQuery().triggerExecutor()
    if executor is None:
        return None
    field = _class(spark, EXECUTOR).getDeclaredField(FIELD)
    field.setAccessible(True)
    # It stands at a moment before the end of whatever wait begins from now on, at most one interval before.
    clock = spark._jvm.org.apache.spark.util.ManualClock(spark._jvm.java.lang.System.currentTimeMillis())
    field.set(executor, clock)
    return TriggerClock(clock, interval_seconds)


def _class(spark: SparkSession, name: str) -> JavaObject:
    return spark._jvm.org.apache.spark.util.Utils.classForName(name, False, False)
