"""What the supervisor should do about a flow: a pure function of what is wanted and what is seen."""

from dataclasses import dataclass, replace
from enum import StrEnum

from include.control.observed_flow import ObservedFlow
from include.control.remedies import remedy

# From the intent to start a driver until it must be known by what: then the supervisor died in between.
START_SECONDS = 180
# On a busy machine a JVM, or a query's start, takes minutes; what takes longer than this hangs.
SLOW_START_SECONDS = 300
# A flow that fails after a minute each time has not recovered in between.
HEALTHY_SECONDS = 180
FIRST_DELAY_SECONDS = 30
LONGEST_DELAY_SECONDS = 900
# An idle query says so every 10 s, a busy one with every task it ends.
STUCK_SECONDS = 120
UNSTICK = "read its driver's log, then action restart; where that does not help, restart its driver"
# How long a driver may take to end what it has in hand before it is ended by force.
FORCE_SECONDS = 90


class State(StrEnum):
    """HEALTHY: it works, or has nothing to do. STARTING: it was just started. WAITING: it has a reason to hold still.
    LAGGING: it works, and falls behind. REJECTING: it works, and suddenly none of its rows reach the table. NOT FRESH:
    its table does not keep its promise. STUCK: it lives without progress. BACKING OFF: it failed and will be started
    again by itself. STOPPED: nobody wants it to run. BROKEN: it failed, and only a person can cure that.
    """

    HEALTHY = "HEALTHY"
    STARTING = "STARTING"
    WAITING = "WAITING"
    LAGGING = "LAGGING"
    REJECTING = "REJECTING"
    NOT_FRESH = "NOT FRESH"
    STUCK = "STUCK"
    BACKING_OFF = "BACKING OFF"
    STOPPED = "STOPPED"
    BROKEN = "BROKEN"


# In which a flow does its work; what is wrong is the outcome.
OF_RUNNING_FLOWS = frozenset({State.LAGGING, State.REJECTING, State.NOT_FRESH})
SICK = OF_RUNNING_FLOWS | {State.STUCK, State.BACKING_OFF, State.BROKEN}


@dataclass(frozen=True)
class Decision:
    """reason and next_step: for the on-call engineer, in words. start: start the flow now. kill: end its driver now.
    error: the error class of what is BROKEN.
    """

    state: State
    reason: str
    next_step: str = ""
    start: bool = False
    kill: bool = False
    error: str = ""

    @property
    def is_sick(self) -> bool:
        return self.state in SICK


def decide(seen: ObservedFlow) -> Decision:
    """Restarts come at once after a healthy spell, then ever more slowly (twice the wait each time), but never end."""
    if seen.restart_seconds_ago is not None and seen.is_driver_alive:
        return _restarting(seen, seen.restart_seconds_ago)
    if seen.wanted == "stopped" and seen.abandoned:
        next_step = f"docs/runbooks/broken.md on {seen.abandoned.error}"
        return Decision(State.BROKEN, seen.abandoned.sentence, next_step, error=seen.abandoned.error)
    if seen.wanted == "stopped":
        return _stopped(seen)
    if seen.failure and seen.failure.needs_person:
        expires = f". {seen.expires}" if seen.expires else ""
        next_step = f"docs/runbooks/broken.md on {seen.failure.error}, then action {remedy(seen.failure.error)}"
        return Decision(State.BROKEN, f"{seen.failure.sentence}{expires}", next_step, error=seen.failure.error)
    if seen.is_held:
        return _at_work(seen)
    if seen.is_platform_down:
        return _down(seen)
    if seen.failure is None and seen.is_driver_alive and seen.intended_seconds_ago is not None:
        return _coming_up(seen)
    return _gone(seen)


def _restarting(seen: ObservedFlow, asked_seconds_ago: float) -> Decision:
    is_late = asked_seconds_ago > FORCE_SECONDS
    if seen.wanted == "stopped":
        return replace(_stopped(seen), kill=is_late)
    asked = f"its driver was asked to restart {asked_seconds_ago:.0f} s ago"
    if asked_seconds_ago > 2 * FORCE_SECONDS:
        reason = f"{asked}, and outlives being ended by force"
        return Decision(State.STUCK, reason, "end its process yourself, it is started again then", kill=True)
    ends = "and did not: it is ended by force" if is_late else "and ends what it has in hand"
    return Decision(State.STARTING, f"{asked} {ends}", kill=is_late)


def _stopped(seen: ObservedFlow) -> Decision:
    if seen.is_held and _hangs(seen):
        reason = f"asked to stop, and without a sign of progress for {_silent_seconds(seen):.0f} s"
        return Decision(State.STUCK, reason, UNSTICK)
    ends = "stops after its batch" if seen.is_held else "stopped"
    reason = f"{ends}: {seen.wanted_why or 'nobody wants it to run'}"
    if seen.expires:
        return Decision(State.LAGGING, f"{reason}. {seen.expires}", "action catch up, or action start")
    if seen.not_fresh:
        return Decision(State.NOT_FRESH, f"{reason}. {seen.not_fresh}", "action catch up, or action start")
    return Decision(State.STOPPED, reason, "action start")


def _silent_seconds(seen: ObservedFlow) -> float:
    return seen.sign_seconds_ago if seen.sign_seconds_ago is not None else seen.intended_seconds_ago or 0


def _hangs(seen: ObservedFlow) -> bool:
    """Whether a flow that is held has shown no sign of life for too long."""
    if seen.sign_seconds_ago is None:
        return _start_seconds(seen) > SLOW_START_SECONDS
    start = seen.newest_start
    is_starting = start is not None and not start.is_done and start.seconds_ago <= SLOW_START_SECONDS
    # A driver that starts a flow shows no signs of the others meanwhile.
    unseen_seconds = start.seconds_ago if start and is_starting else 0
    return seen.sign_seconds_ago - unseen_seconds > STUCK_SECONDS


def _start_seconds(seen: ObservedFlow) -> float:
    """Since it began to start, or since another flow did that its driver starts before it."""
    return min(_silent_seconds(seen), seen.newest_start.seconds_ago) if seen.newest_start else _silent_seconds(seen)


def _at_work(seen: ObservedFlow) -> Decision:
    if _hangs(seen):
        why = f" ({seen.waits_for})" if seen.waits_for else ""
        reason = f"alive, and without a sign of progress for {_silent_seconds(seen):.0f} s{why}"
        return Decision(State.STUCK, reason, UNSTICK)
    if seen.sign_seconds_ago is None:
        return Decision(State.STARTING, f"its query has been starting for {_silent_seconds(seen):.0f} s")
    if seen.waits_for:
        return Decision(State.WAITING, seen.waits_for)
    return _outcome(seen) or Decision(
        State.HEALTHY, "at work" if seen.wanted == "running" else "reads to the end, then stops"
    )


def _outcome(seen: ObservedFlow) -> Decision | None:
    """What is wrong with a flow that works; the first is the most urgent."""
    if seen.expires:
        words = ". ".join(filter(None, (seen.expires, seen.backlog)))
        return Decision(State.LAGGING, words, "see what takes its time: make status and its driver's log")
    if seen.rejects:
        return Decision(State.REJECTING, seen.rejects, "docs/runbooks/rejecting.md")
    if seen.not_fresh:
        words = ". ".join(filter(None, (seen.not_fresh, seen.backlog)))
        return Decision(State.NOT_FRESH, words, "docs/runbooks/not-fresh.md")
    if seen.backlog:
        return Decision(State.LAGGING, seen.backlog, "see what takes its time: make status and its driver's log")
    return None


def _coming_up(seen: ObservedFlow) -> Decision:
    ago, start = _silent_seconds(seen), seen.newest_start
    reason = f"{'started' if seen.sign_seconds_ago is None else 'last at work'} {ago:.0f} s ago"
    if _start_seconds(seen) >= SLOW_START_SECONDS:
        return Decision(State.STUCK, f"{reason}, and does not run although its driver lives", UNSTICK)
    if seen.sign_seconds_ago is None and not seen.is_driver_up:
        reason = f"its driver has been starting for {ago:.0f} s"
    elif start and not start.is_done:
        reason = f"its driver starts {start.flow} first, for {start.seconds_ago:.0f} s"
    # Else its driver, or somebody's by hand, is between two flows, or has just let go of this one.
    return Decision(State.STARTING, reason)


def _down(seen: ObservedFlow) -> Decision:
    is_first = seen.intended_seconds_ago is None or _never_ran(seen)
    if seen.failure is None and (seen.ended_with_platform or is_first):
        return Decision(State.STOPPED, "stopped with the platform", "make up")
    # It had ended before, and that is not to be hidden.
    return Decision(State.BACKING_OFF, f"{_ended(seen)} (`make up` starts it again)", "make up")


def _gone(seen: ObservedFlow) -> Decision:
    if seen.intended_seconds_ago is None or _never_ran(seen):
        return Decision(State.STARTING, "it does not run", start=True)
    ended = _ended(seen)
    wait_seconds = delay_seconds(seen.attempts) - seen.intended_seconds_ago
    if wait_seconds > 0:
        reason = f"{ended} (start {seen.attempts + 1} follows in {wait_seconds:.0f} s)"
        return Decision(State.BACKING_OFF, reason, "none, it is started again; sooner by action restart")
    # Sick this once, so that no end goes unnoticed.
    return Decision(State.BACKING_OFF, f"starting again: {ended}", "none, it is started now", start=True)


def _never_ran(seen: ObservedFlow) -> bool:
    return seen.attempts == 0 and seen.failure is None and seen.sign_seconds_ago is None


def _ended(seen: ObservedFlow) -> str:
    return seen.failure.sentence if seen.failure else "its driver ended without a word: read its log"


def delay_seconds(attempts: int) -> float:
    """From one start to the next when none led to health."""
    return min(FIRST_DELAY_SECONDS * 2 ** max(attempts - 1, 0), LONGEST_DELAY_SECONDS) if attempts else 0
