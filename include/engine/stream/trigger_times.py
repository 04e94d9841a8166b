"""When the next trigger of a flow is due."""

import math
import time
from dataclasses import dataclass, field

from pyspark.sql.streaming import StreamingQuery

from include.engine.stream import pace
from include.engine.stream.trigger_clock import TriggerClock
from include.settings import settings
from include.spec import Delta, Table

# The pauses of a topic or folder grow to this while nothing comes, twice as long each time: a look costs Spark 10 ms.
IDLE_SECONDS = 4.0
# A table whose log has not changed is asked all the same, so that the query shows that it lives.
UNCHANGED_SECONDS = 10.0
# What a batch left unread, because it reached its limits, waits for the next commit so much longer than usual.
REST_INTERVALS = 1.5
# Until a query that starts can be asked for its clock.
TAKE_SECONDS = 0.2
# What dates files ticks seldom, so the date of a log that changed just now may stay the same after another change.
FILE_CLOCK_SECONDS = 0.1


@dataclass(eq=False)
class Beat:
    """When a flow was told to begin, and what came of it. Moments are those of the monotonic clock.

    interval_seconds: in force now. batch_seconds: what its batches last, smoothed. busy_share: of its triggers, how
    many found something to read. is_woken: its source has a commit since it was told. has_read: a batch has begun
    since then. idle_seconds: its pause, as long as nothing comes. log_date: as `_log_date`, when it was told.
    readers, writers: the flows of its driver that read its table, and that write what it reads.
    """

    table: Table
    interval_seconds: float
    query: StreamingQuery | None = None
    clock: TriggerClock | None = None
    readers: tuple["Beat", ...] = ()
    writers: tuple["Beat", ...] = ()
    batch_seconds: float | None = None
    busy_share: float = 1.0
    is_busy: bool = False
    is_woken: bool = False
    has_read: bool = True
    began_at: float = 0.0
    looked_at: float = 0.0
    told_at: float = field(default_factory=time.monotonic)
    idle_seconds: float = 0.0
    log_date: int | None = None

    @property
    def root(self) -> pace.Root:
        return pace.Root(self.table.interval_seconds, self.busy_share * self._round_seconds())

    def _round_seconds(self) -> float:
        """Of its batch, and of those that it causes."""
        return (self.batch_seconds or 0.0) + sum(reader._round_seconds() for reader in self.readers)

    def adapt(self, of_roots: dict[str, float]) -> float:
        """Set its interval by those of the roots; returns it."""
        own = self.table.interval_seconds
        if self.clock is None:
            self.interval_seconds = own
        elif self.writers:
            self.interval_seconds = max(own, min(writer.adapt(of_roots) for writer in self.writers))
        else:
            self.interval_seconds = of_roots[self.table.flow]
        return self.interval_seconds

    def begin(self) -> None:
        self.began_at, self.is_busy, self.has_read, self.idle_seconds = time.monotonic(), True, True, 0.0

    def commit(self) -> None:
        self.is_busy = False
        self.batch_seconds = pace.smoothed(self.batch_seconds, time.monotonic() - self.began_at)
        for reader in self.readers:
            reader.is_woken = True

    def due_at(self) -> float:
        """When to look at it."""
        if self.query is None or self.is_busy:
            return math.inf
        if self.clock is None:
            return self.looked_at + TAKE_SECONDS
        own = self.table.interval_seconds
        if self.is_woken:
            # Its own interval counts where it is the longer one: else the pauses of both would add up.
            return self.began_at + (own if own > self._wakes_every() else 0.0)
        if self.writers or (isinstance(self.table.source, Delta) and not self.has_read):
            # It looks for what others than its driver commit.
            return max(self.looked_at, self.began_at) + own
        return self.told_at + max(self.interval_seconds, 0.0 if self.has_read else self.idle_seconds)

    def is_due(self) -> bool:
        """Whether its next trigger is to begin, at this look."""
        self.looked_at = now = time.monotonic()
        if self.is_woken or not isinstance(self.table.source, Delta):
            return True
        if self.has_read and now > self.began_at + REST_INTERVALS * self._wakes_every():
            return True
        date = self._log_date()
        return date is None or date != self.log_date or now > self.told_at + UNCHANGED_SECONDS

    def tell(self) -> None:
        """Begin its next trigger."""
        assert self.clock
        self.log_date = self._log_date()
        self.busy_share = pace.smoothed(self.busy_share, float(self.has_read))
        self.idle_seconds = min(IDLE_SECONDS, max(2 * self.idle_seconds, self.interval_seconds))
        self.told_at, self.is_woken, self.has_read = time.monotonic(), False, False
        self.clock.fire()

    def _wakes_every(self) -> float:
        return min((writer.interval_seconds for writer in self.writers), default=0.0)

    def _log_date(self) -> int | None:
        """When the log that it reads had its last change, in nanoseconds; None where that cannot be told."""
        if not isinstance(self.table.source, Delta):
            return None
        try:
            date = (settings().table_path(self.table.source.table) / "_delta_log").stat().st_mtime_ns
        except OSError:
            return None
        return date if time.time() - date / 1e9 > FILE_CLOCK_SECONDS else None
