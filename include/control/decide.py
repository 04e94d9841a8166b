"""What the supervisor should do about a driver: a pure function of what is wanted and what is seen."""

from dataclasses import dataclass
from enum import StrEnum

START_SECONDS = 180
# A driver takes its leases before its queries start; only one that lasts has recovered.
HEALTHY_SECONDS = 120
FIRST_DELAY_SECONDS = 30
LONGEST_DELAY_SECONDS = 900


class State(StrEnum):
    HEALTHY = "HEALTHY"
    STARTING = "STARTING"
    BACKING_OFF = "BACKING OFF"
    STUCK = "STUCK"
    STOPPED = "STOPPED"


@dataclass(frozen=True)
class Seen:
    """One driver, as the control database and this machine show it.

    wanted: its flows that are to run. held: those of them whose lease a live process holds.
    launched_seconds_ago: since the last decision to start it; None when it was never started.
    is_launch_alive: whether that start may still come to something.
    attempts: starts since it was last healthy. failure: the sentence it last ended with.
    """

    wanted: frozenset[str]
    held: frozenset[str]
    launched_seconds_ago: float | None = None
    is_launch_alive: bool = False
    attempts: int = 0
    failure: str | None = None


@dataclass(frozen=True)
class Decision:
    """start: launch the driver now. reason: for the on-call engineer, in words, with the next step."""

    state: State
    reason: str
    start: bool = False

    @property
    def is_sick(self) -> bool:
        return self.state in (State.BACKING_OFF, State.STUCK)


def decide(seen: Seen) -> Decision:
    """Restarts come at once after a healthy spell, then ever more slowly (twice the wait each time), but never end."""
    if not seen.wanted:
        return Decision(State.STOPPED, "nobody wants its flows to run")
    missing = seen.wanted - seen.held
    if not missing:
        return Decision(State.HEALTHY, "every flow holds its lease")
    names = ", ".join(sorted(missing))
    if seen.launched_seconds_ago is None:
        return Decision(State.STARTING, "it was never started", start=True)
    ago = f"{seen.launched_seconds_ago:.0f} s ago"
    if seen.is_launch_alive and seen.launched_seconds_ago < START_SECONDS:
        return Decision(State.STARTING, f"launched {ago}")
    if seen.is_launch_alive:
        return Decision(State.STUCK, f"launched {ago} and still without {names}: read its log, then kill it")
    ended = seen.failure or "it ended without a word: read its log"
    wait_seconds = delay_seconds(seen.attempts) - seen.launched_seconds_ago
    if wait_seconds > 0:
        return Decision(State.BACKING_OFF, f"{ended} (next start in {wait_seconds:.0f} s, attempt {seen.attempts + 1})")
    return Decision(State.STARTING, f"starting again: {ended}", start=True)


def delay_seconds(attempts: int) -> float:
    """From one start to the next when none led to health."""
    return min(FIRST_DELAY_SECONDS * 2 ** max(attempts - 1, 0), LONGEST_DELAY_SECONDS) if attempts else 0
