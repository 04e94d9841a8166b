"""Computes how often the flows of a driver begin a batch, from numbers alone.

A root is a flow whose source no other flow of the driver writes. A root's commit triggers the flows below it, so the
roots set the pace of all. Under load they begin batches less often, and batches grow.
"""

from collections.abc import Mapping
from dataclasses import dataclass

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
