"""Whether the rows of a flow suddenly end elsewhere than in its table: repeated, dropped, late or quarantined.

A producer that sends its old messages again looks healthy by every other measure, and so does a rule that no row meets.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from include.monitoring.row_outcomes import Batch, counted
from include.readers.delta_log import Log
from include.settings import settings
from include.spec import Table

# What is recent: ten minutes, and what is behind until there are a hundred rows.
RECENT_SECONDS = 600
FEWEST_ROWS = 100
# A flow is compared with so many batches before.
PAST_BATCHES = 200
# Of a hundred recent rows at most five are written, where more than half were before.
LEAST_WRITTEN, OFTEN_WRITTEN = 0.05, 0.5
# A log is followed back so far.
MOST_BATCHES = 2_000


@dataclass(frozen=True)
class Outcome:
    """Where the rows of some batches ended."""

    read: int = 0
    written: int = 0
    duplicates: int = 0
    quarantined: int = 0
    dropped: int = 0

    @classmethod
    def of(cls, batches: Iterable[Batch]) -> "Outcome":
        listed = list(batches)
        names = ("read", "written", "duplicates", "quarantined", "dropped")
        return cls(*(sum(getattr(batch, name) for batch in listed) for name in names))

    @property
    def share(self) -> float:
        """Written of read, from 0 to 1; of no rows, all."""
        return self.written / self.read if self.read else 1.0


def of(flow: Table, now: float, is_known: bool) -> str | None:
    """How the newest rows of a flow end, in words, where they do not pass and used to; None while they pass.

    is_known: whether that is an alarm already: then it lasts until rows pass again, whatever the past is by now.
    now: seconds since 1970. Raises Unreachable where the table is not stored, and Broken.
    """
    log = Log(settings().table_path(flow.name))
    recent, past = _split(islice(counted(flow, log), MOST_BATCHES), now)
    if recent.read < FEWEST_ROWS or recent.share > LEAST_WRITTEN:
        return None
    if not is_known:
        before = Outcome.of(islice(past, PAST_BATCHES))
        if before.read < FEWEST_ROWS or before.share <= OFTEN_WRITTEN:
            return None
    ends = (("repeated", recent.duplicates), ("quarantined", recent.quarantined), ("dropped", recent.dropped))
    listed = ", ".join(f"{count:,} {name}" for name, count in ends if count)
    return f"of the newest {recent.read:,} rows {recent.written:,} were written: {listed or 'none is left'}"


def _split(batches: Iterator[Batch], now: float) -> tuple[Outcome, Iterator[Batch]]:
    """The recent ones, and those before. It ends early where rows pass: nothing is to be found then."""
    recent: list[Batch] = []
    read = written = 0
    for batch in batches:
        if now - batch.at > RECENT_SECONDS and read >= FEWEST_ROWS:
            return Outcome.of(recent), chain([batch], batches)
        recent.append(batch)
        read, written = read + batch.read, written + batch.written
        if written > max(LEAST_WRITTEN * FEWEST_ROWS, OFTEN_WRITTEN * read):
            break
    return Outcome.of(recent), batches
