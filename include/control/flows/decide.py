"""What the supervisor does about a flow: a pure function of what is wanted of it and what is observed."""

from dataclasses import dataclass, replace
from enum import StrEnum

from include.control.flows import alarms
from include.control.flows.alarms import AlarmKind
from include.control.flows.observed_flow import ObservedFlow

# An intent without a handle after this time means that the supervisor died before the launch.
START_SECONDS = 180
# On a busy machine a JVM or a query needs minutes to start; a start that takes longer than this hangs.
SLOW_START_SECONDS = 300
# A flow counts as recovered after this time; one that fails every minute has not recovered in between.
HEALTHY_SECONDS = 180
FIRST_DELAY_SECONDS = 30
LONGEST_DELAY_SECONDS = 900
# An idle query reports progress every 10 s, a busy one with every task that ends.
STUCK_SECONDS = 120
STUCK_REMEDY = "read its driver's log, then action restart; where that does not help, restart its driver"
# A driver that has not ended after this time is killed.
FORCE_SECONDS = 90
# Errors of a part that the flows of a driver share, such as the store of the lake.
SHARED_ERRORS = frozenset({"Unreachable", "LAKE_UNREACHABLE", "LAKE_ACCESS", "SCHEMA_REGISTRY_UNREACHABLE"})


class State(StrEnum):
    """HEALTHY: it processes batches or has none to process. STARTING: it was just started. WAITING: it has a reason to
    wait. LAGGING: it runs and falls behind. REJECTING: it runs, and suddenly none of its rows reach the table. NOT
    FRESH: its table breaks its freshness promise. STUCK: it is alive without progress. BACKING OFF: it failed and
    restarts by itself. STOPPED: nobody wants it to run. BROKEN: it failed, and only a person can cure that.
    """

    HEALTHY = "HEALTHY"
    STARTING = "STARTING"
    WAITING = "WAITING"
    LAGGING = AlarmKind.LAGGING
    REJECTING = AlarmKind.REJECTING
    NOT_FRESH = AlarmKind.NOT_FRESH
    STUCK = AlarmKind.STUCK
    BACKING_OFF = AlarmKind.BACKING_OFF
    STOPPED = "STOPPED"
    BROKEN = AlarmKind.BROKEN


# The flow runs; only its outcome is wrong.
RUNNING_BUT_UNHEALTHY = frozenset({State.LAGGING, State.REJECTING, State.NOT_FRESH})
RUNNING = frozenset({State.HEALTHY, State.WAITING, *RUNNING_BUT_UNHEALTHY})
DOWN = frozenset({State.STUCK, State.BACKING_OFF, State.BROKEN})
UNHEALTHY = frozenset(state for state in State if state.name in AlarmKind.__members__)


@dataclass(frozen=True)
class Decision:
    """reason and next_step: in words, for the on-call engineer. start: start the flow now. kill: kill its driver now.
    error: the error class of a BROKEN flow. cause: what is to blame and has hit other flows too, such as `driver main`;
    empty: the trouble is the flow's own. may_start: whether a person may start the flow, which is stopped.
    """

    state: State
    reason: str
    next_step: str = ""
    start: bool = False
    kill: bool = False
    error: str = ""
    cause: str = ""
    may_start: bool = False

    @property
    def is_unhealthy(self) -> bool:
        return self.state in UNHEALTHY

    @property
    def action(self) -> str:
        """The action on the flow that helps; empty: none does."""
        if self.may_start:
            return alarms.START
        return alarms.action_for(self.error) if self.state in DOWN else ""


def decide(flow: ObservedFlow) -> Decision:
    """The first restart is immediate, the following ones back off exponentially, and they never end."""
    if flow.restart_seconds_ago is not None and flow.is_driver_alive:
        return _restarting(flow, flow.restart_seconds_ago)
    if flow.wanted == "stopped" and flow.abandoned:
        next_step = f"{alarms.runbook(State.BROKEN)} on {flow.abandoned.error}"
        failure = flow.abandoned
        return Decision(State.BROKEN, failure.sentence, next_step, error=failure.error, cause=failure.cause)
    if flow.wanted == "stopped":
        return _stopped(flow)
    if flow.failure and flow.failure.needs_person:
        expires = f". {flow.expires}" if flow.expires else ""
        error = flow.failure.error
        next_step = f"{alarms.runbook(State.BROKEN)} on {error}, then action {alarms.action_for(error)}"
        return Decision(State.BROKEN, f"{flow.failure.sentence}{expires}", next_step, error=error)
    if flow.is_held:
        return _decide_held(flow)
    if flow.is_platform_down:
        return _decide_platform_down(flow)
    if flow.failure is None and flow.is_driver_alive and flow.intended_seconds_ago is not None:
        return _decide_unheld(flow)
    return _decide_ended(flow)


def _restarting(flow: ObservedFlow, requested_seconds_ago: float) -> Decision:
    is_late = requested_seconds_ago > FORCE_SECONDS
    if flow.wanted == "stopped":
        return replace(_stopped(flow), kill=is_late)
    request = f"its driver was asked to restart {requested_seconds_ago:.0f} s ago"
    if requested_seconds_ago > 2 * FORCE_SECONDS:
        reason = f"{request}, and is still alive after SIGKILL"
        next_step = "end its process yourself, it is started again then"
        return Decision(State.STUCK, reason, next_step, kill=True, cause=driver_cause(flow.driver))
    outcome = "and did not: it is ended by force" if is_late else "and finishes its current work"
    return Decision(State.STARTING, f"{request} {outcome}", kill=is_late)


def _stopped(flow: ObservedFlow) -> Decision:
    # A job that needs the flow stopped holds its lease itself, and shows no progress of it.
    if flow.is_held and not flow.job and _hangs(flow):
        reason = f"asked to stop, and without a sign of progress for {_silent_seconds(flow):.0f} s"
        return Decision(State.STUCK, reason, STUCK_REMEDY)
    activity = "stops after its batch" if flow.is_held and not flow.job else "stopped"
    reason = f"{activity}: {flow.wanted_why or 'nobody wants it to run'}"
    if flow.job:
        next_step = f"none, {flow.job} starts it again"
    elif flow.expires or flow.not_fresh:
        next_step = "action catch up, or action start"
    else:
        next_step = "action start"
    stopped = Decision(State.STOPPED, reason, next_step, may_start=not flow.job)
    if flow.expires:
        return replace(stopped, state=State.LAGGING, reason=f"{reason}. {flow.expires}")
    if flow.not_fresh:
        return replace(stopped, state=State.NOT_FRESH, reason=f"{reason}. {flow.not_fresh}", cause=flow.late_by)
    return stopped


def _silent_seconds(flow: ObservedFlow) -> float:
    return flow.sign_seconds_ago if flow.sign_seconds_ago is not None else flow.intended_seconds_ago or 0


def _hangs(flow: ObservedFlow) -> bool:
    """Whether a held flow has shown no progress for too long."""
    if flow.sign_seconds_ago is None:
        return _start_seconds(flow) > SLOW_START_SECONDS
    start = flow.newest_start
    is_starting = start is not None and not start.is_done and start.seconds_ago <= SLOW_START_SECONDS
    # A driver does not report progress of the other flows while it starts one.
    starting_seconds = start.seconds_ago if start and is_starting else 0
    return flow.sign_seconds_ago - starting_seconds > STUCK_SECONDS


def _start_seconds(flow: ObservedFlow) -> float:
    """Since its start began, or since its driver began to start another flow first."""
    return min(_silent_seconds(flow), flow.newest_start.seconds_ago) if flow.newest_start else _silent_seconds(flow)


def _decide_held(flow: ObservedFlow) -> Decision:
    if _hangs(flow):
        cause = f" ({flow.waits_for})" if flow.waits_for else ""
        reason = f"alive, and without a sign of progress for {_silent_seconds(flow):.0f} s{cause}"
        return Decision(State.STUCK, reason, STUCK_REMEDY)
    if flow.sign_seconds_ago is None:
        return Decision(State.STARTING, f"its query has been starting for {_silent_seconds(flow):.0f} s")
    if flow.waits_for:
        return Decision(State.WAITING, flow.waits_for)
    activity = "at work" if flow.wanted == "running" else "reads to the end, then stops"
    moves = f", in driver '{flow.runs_in}' until driver '{flow.driver}' takes it over" if flow.runs_in else ""
    return _outcome(flow) or Decision(State.HEALTHY, f"{activity}{moves}")


def _outcome(flow: ObservedFlow) -> Decision | None:
    """What is wrong with a flow that runs, the most urgent problem first."""
    if flow.expires:
        reason = ". ".join(filter(None, (flow.expires, flow.backlog)))
        return Decision(State.LAGGING, reason, "see what takes its time: make status and its driver's log")
    if flow.rejects:
        return Decision(State.REJECTING, flow.rejects, alarms.runbook(State.REJECTING))
    if flow.not_fresh:
        reason = ". ".join(filter(None, (flow.not_fresh, flow.backlog)))
        return Decision(State.NOT_FRESH, reason, alarms.runbook(State.NOT_FRESH), cause=flow.late_by)
    if flow.backlog:
        return Decision(State.LAGGING, flow.backlog, "see what takes its time: make status and its driver's log")
    return None


def _decide_unheld(flow: ObservedFlow) -> Decision:
    silent_seconds, start = _silent_seconds(flow), flow.newest_start
    reason = f"{'started' if flow.sign_seconds_ago is None else 'last at work'} {silent_seconds:.0f} s ago"
    if _start_seconds(flow) >= SLOW_START_SECONDS:
        return Decision(State.STUCK, f"{reason}, and does not run although its driver lives", STUCK_REMEDY)
    if flow.sign_seconds_ago is None and not flow.is_driver_up:
        reason = f"its driver has been starting for {silent_seconds:.0f} s"
    elif start and not start.is_done:
        reason = f"its driver starts {start.flow} first, for {start.seconds_ago:.0f} s"
    # Otherwise its driver, or one started by hand, is between two flows or has just released this one.
    return Decision(State.STARTING, reason)


def _decide_platform_down(flow: ObservedFlow) -> Decision:
    is_first = flow.intended_seconds_ago is None or _never_ran(flow)
    if flow.failure is None and (flow.ended_with_platform or is_first):
        return Decision(State.STOPPED, "stopped with the platform", "make up")
    # It failed before the shutdown, and that stays visible.
    reason = f"{_failure_sentence(flow)} (`make up` starts it again)"
    return Decision(State.BACKING_OFF, reason, "make up", cause=_shared_cause(flow))


def _decide_ended(flow: ObservedFlow) -> Decision:
    if flow.intended_seconds_ago is None or _never_ran(flow):
        return Decision(State.STARTING, "it does not run", start=True)
    cause = _failure_sentence(flow)
    wait_seconds = delay_seconds(flow.attempts) - flow.intended_seconds_ago
    if wait_seconds > 0:
        reason = f"{cause} (start {flow.attempts + 1} follows in {wait_seconds:.0f} s)"
        next_step = "none, it is started again; sooner by action restart"
        return Decision(State.BACKING_OFF, reason, next_step, cause=_shared_cause(flow))
    # Reported once as unhealthy, so that no failure goes unnoticed.
    reason, next_step = f"starting again: {cause}", "none, it is started now"
    return Decision(State.BACKING_OFF, reason, next_step, start=True, cause=_shared_cause(flow))


OF_DRIVER = "driver "


def driver_cause(driver: str) -> str:
    """The cause of what has hit all flows of a driver."""
    return f"{OF_DRIVER}{driver}"


def driver_of(cause: str) -> str:
    """The driver that is the cause; empty if none is."""
    return cause.removeprefix(OF_DRIVER) if cause.startswith(OF_DRIVER) else ""


def _shared_cause(flow: ObservedFlow) -> str:
    """What the failure of a flow has in common with others: its driver has ended, or a part does not answer."""
    if flow.failure is None:
        return driver_cause(flow.driver)
    return f"{flow.failure.error} in driver {flow.driver}" if flow.failure.error in SHARED_ERRORS else ""


def _never_ran(flow: ObservedFlow) -> bool:
    return flow.attempts == 0 and flow.failure is None and flow.sign_seconds_ago is None


def _failure_sentence(flow: ObservedFlow) -> str:
    return flow.failure.sentence if flow.failure else "its driver exited without an error report: read its log"


def delay_seconds(attempts: int) -> float:
    """The time from one start to the next while none leads to a healthy flow."""
    return min(FIRST_DELAY_SECONDS * 2 ** max(attempts - 1, 0), LONGEST_DELAY_SECONDS) if attempts else 0
