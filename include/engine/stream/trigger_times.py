"""Decides when the next trigger of a flow is due."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

from include.engine.stream import pace
from include.engine.stream.trigger_clock import TriggerClock
from include.lake.paths import LakePath
from include.settings import settings
from include.spec import Delta, Table

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

    table: Table
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
    def root(self) -> pace.Root:
        return pace.Root(self.table.interval_seconds, self.busy_share * self._round_seconds_with_readers())

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
        self.batch_seconds = pace.smoothed(self.batch_seconds, time.monotonic() - self.began_at)
        for reader in self.readers:
            reader.has_new_commit = True

    def due_at(self) -> float:
        """Returns the moment at which to check it."""
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
        if self.has_begun_batch:
            return self.fired_at + self.interval_seconds
        # Under load, batches are far apart. A look that finds no rows costs little, and need not wait as long.
        return max(self.began_at + self.interval_seconds, self.fired_at + max(declared_seconds, self.idle_seconds))

    def is_due(self) -> bool:
        """Returns whether its next trigger is due. Notes the time of the check."""
        self.checked_at = now = time.monotonic()
        if self.has_new_commit or not isinstance(self.table.source, Delta):
            return True
        if self.has_begun_batch and now > self.began_at + REST_INTERVALS * self._source_interval():
            return True
        mtime_ns = self._log_mtime_ns()
        return mtime_ns is None or mtime_ns != self.log_mtime_ns or now > self.fired_at + UNCHANGED_SECONDS

    def fire(self) -> None:
        """Starts its next trigger."""
        assert self.clock
        self.log_mtime_ns = self._log_mtime_ns()
        self.busy_share = pace.smoothed(self.busy_share, float(self.has_begun_batch))
        self.idle_seconds = min(IDLE_SECONDS, max(2 * self.idle_seconds, self.interval_seconds))
        self.fired_at, self.has_new_commit, self.has_begun_batch = time.monotonic(), False, False
        self.clock.fire()

    def _source_interval(self) -> float:
        return min((writer.interval_seconds for writer in self.writers), default=0.0)

    @property
    def _log(self) -> LakePath | None:
        """The log of its source; None if that is no table."""
        source = self.table.source
        return settings().table_path(source.table) / "_delta_log" if isinstance(source, Delta) else None

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
