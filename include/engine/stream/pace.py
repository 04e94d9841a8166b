"""How often the flows of a driver begin a batch: a rule of numbers alone.

A root is a flow that no other flow of its driver feeds; what a root commits wakes the flows below it. So the roots set
the pace of all, and under load they begin less often: batches get fewer and larger.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# Of its cores, what the batches of a driver may keep busy while rows come all the time.
BUSY_SHARE = 0.6
# A root waits no longer than this, or than this many of its rounds, whatever else its driver has to do.
MOST_SECONDS = 10.0
MOST_ROUNDS = 4
# What the newest batch counts against all before it.
NEWEST_SHARE = 1 / 3


@dataclass(frozen=True)
class Root:
    """interval_seconds: what its table declares. round_seconds: what one trigger of it costs on average, with the
    batches that it wakes.
    """

    interval_seconds: float
    round_seconds: float


def intervals(roots: Mapping[str, Root], cores: int) -> dict[str, float]:
    """By root, the seconds from one trigger to the next: never less than it declares.

    The rounds of all roots may keep `BUSY_SHARE` of the cores busy. What is more is taken from those that begin most
    often, which then share one interval; a root that declares a longer one keeps it.
    """
    shared = _shared_interval(list(roots.values()), BUSY_SHARE * cores)
    return {
        name: max(root.interval_seconds, min(shared, max(MOST_SECONDS, MOST_ROUNDS * root.round_seconds)))
        for name, root in roots.items()
    }


def _shared_interval(roots: list[Root], busy_cores: float) -> float:
    """The least interval at which so many cores bear all rounds, where no root begins more often than it declares."""
    ordered = sorted(roots, key=lambda root: root.interval_seconds)
    shared = 0.0
    for place, root in enumerate(ordered):
        kept = sum(other.round_seconds / other.interval_seconds for other in ordered[place:])
        sharing = sum(other.round_seconds for other in ordered[:place])
        if kept < busy_cores and sharing / (busy_cores - kept) <= root.interval_seconds:
            return sharing / (busy_cores - kept)
        shared = (sharing + root.round_seconds) / busy_cores
    return shared


def smoothed(before: float | None, newest: float) -> float:
    """A running mean. before: None where this is the first."""
    return newest if before is None else before + NEWEST_SHARE * (newest - before)
