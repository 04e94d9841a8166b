"""Detects flows whose rows suddenly do not reach the table: repeated, dropped, late or quarantined rows.

Other measures do not show a producer that repeats its old messages, or a rule that no row passes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, takewhile
from typing import cast

from include.delta.delta_log import DeltaLog
from include.ledger.row_outcomes import Batch, batches_of
from include.spec import Table

# Recent batches: those of the last 10 minutes, and earlier ones until there are FEWEST_ROWS rows.
RECENT_SECONDS = 600
FEWEST_ROWS = 100
# The number of earlier batches for comparison.
PAST_BATCHES = 200
# The alarm: at most 5 % of the recent rows are written, and more than 50 % of the earlier rows were.
LEAST_WRITTEN, OFTEN_WRITTEN = 0.05, 0.5
# The number of batches that are read from the log at most.
MOST_BATCHES = 2_000


@dataclass(frozen=True)
class Outcome:
    """The sum of what became of the rows of some batches."""

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
        """The written share of the rows that were read, from 0 to 1; 1 for no rows."""
        return self.written / self.read if self.read else 1.0


def of(flow: Table, log: DeltaLog, now_seconds: float, is_known: bool) -> str | None:
    """Describes what became of a flow's newest rows if they do not pass and earlier ones did; else None.

    log: of its table. is_known: whether this alarm is open already. Then it lasts until rows pass again, whatever
    happened earlier. now_seconds: since 1970. Raises FlowBroken.
    """
    # A table that checks no rows rejects none. Its log may be long, and this runs every minute.
    checked = cast(Iterator[Batch], takewhile(lambda batch: batch is not None, batches_of(flow, log.commits())))
    recent, past = _split(islice(checked, MOST_BATCHES), now_seconds)
    if recent.read < FEWEST_ROWS or recent.share > LEAST_WRITTEN:
        return None
    if not is_known:
        earlier_rows = Outcome.of(islice(past, PAST_BATCHES))
        if earlier_rows.read < FEWEST_ROWS or earlier_rows.share <= OFTEN_WRITTEN:
            return None
    ends = (("repeated", recent.duplicates), ("quarantined", recent.quarantined), ("dropped", recent.dropped))
    listed = ", ".join(f"{count:,} {name}" for name, count in ends if count)
    return f"of the newest {recent.read:,} rows {recent.written:,} were written: {listed or 'none is left'}"


def _split(batches: Iterator[Batch], now_seconds: float) -> tuple[Outcome, Iterator[Batch]]:
    """Returns the recent rows and the earlier batches.

    It stops early where rows pass, because there is no alarm then.
    """
    recent: list[Batch] = []
    read = written = 0
    for batch in batches:
        if now_seconds - batch.at > RECENT_SECONDS and read >= FEWEST_ROWS:
            return Outcome.of(recent), chain([batch], batches)
        recent.append(batch)
        read, written = read + batch.read, written + batch.written
        if written > max(LEAST_WRITTEN * FEWEST_ROWS, OFTEN_WRITTEN * read):
            break
    return Outcome.of(recent), batches
