"""The decisions of the supervisor about a flow, case by case."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.control.flows import alarms
from include.control.flows.alarms import AlarmKind
from include.control.flows.decide import (
    FORCE_SECONDS,
    LONGEST_DELAY_SECONDS,
    SLOW_START_SECONDS,
    STUCK_REMEDY,
    STUCK_SECONDS,
    UNHEALTHY,
    Decision,
    State,
    decide,
    delay_seconds,
)
from include.control.flows.observed_flow import Failure, ObservedFlow, Start
from include.control.store.job_id import JobKind

CURABLE = Failure("no broker answers", "Unreachable", needs_person=False)
INCURABLE = Failure("column 'bpm' is gone", "DeclarationError", needs_person=True)
SILENT = "its driver exited without an error report: read its log"
BY_ITSELF = "none, it is started again; sooner by action restart"
BROKEN_REMEDY = "docs/runbooks/broken.md on DeclarationError, then action restart"
AWAY = "no broker answers at kafka:9092"
BEHIND = "9 h behind, and further every minute"
EXPIRES = "partition 3 is deleted unread in 40 h"
SLOW = "see what takes its time: make status and its driver's log"


def held_flow(**fields) -> ObservedFlow:
    return ObservedFlow(
        **{"is_held": True, "is_driver_alive": True, "intended_seconds_ago": 500.0, "sign_seconds_ago": 5.0} | fields
    )


def starting_flow(seconds_ago: float, **fields) -> ObservedFlow:
    return ObservedFlow(is_driver_alive=True, intended_seconds_ago=seconds_ago, attempts=1, **fields)


def ended_flow(seconds_ago: float, attempts: int = 1, **fields) -> ObservedFlow:
    return ObservedFlow(intended_seconds_ago=seconds_ago, attempts=attempts, **fields)


def first_start(seconds_ago: float, is_done: bool = False) -> Start:
    return Start("bronze.first", seconds_ago, is_done)


def restarting_flow(seconds_ago: float, **fields) -> ObservedFlow:
    return ObservedFlow(is_driver_alive=True, restart_seconds_ago=seconds_ago, **fields)


REPEATED, OLD = "of the newest 100 rows 0 were written: 100 repeated", "what it lacks is 12 min old"
CASES = {
    "all is well": (held_flow(), Decision(State.HEALTHY, "at work")),
    "it drains": (held_flow(wanted="draining"), Decision(State.HEALTHY, "reads to the end, then stops")),
    "held by a driver nobody launched": (
        ObservedFlow(is_held=True, sign_seconds_ago=5.0),
        Decision(State.HEALTHY, "at work"),
    ),
    "held, its driver's own lease is gone": (held_flow(is_driver_alive=False), Decision(State.HEALTHY, "at work")),
    "its query has yet to say something": (
        held_flow(sign_seconds_ago=None, intended_seconds_ago=20.0),
        Decision(State.STARTING, "its query has been starting for 20 s"),
    ),
    "the last second before it is stuck": (
        held_flow(sign_seconds_ago=float(STUCK_SECONDS)),
        Decision(State.HEALTHY, "at work"),
    ),
    "it lives without progress": (
        held_flow(sign_seconds_ago=STUCK_SECONDS + 1.0),
        Decision(State.STUCK, "alive, and without a sign of progress for 121 s", STUCK_REMEDY),
    ),
    "its query never said anything": (
        held_flow(sign_seconds_ago=None, intended_seconds_ago=500.0),
        Decision(State.STUCK, "alive, and without a sign of progress for 500 s", STUCK_REMEDY),
    ),
    "its query has yet to say something, and its source is away": (
        held_flow(sign_seconds_ago=None, intended_seconds_ago=20.0, waits_for=AWAY),
        Decision(State.STARTING, "its query has been starting for 20 s"),
    ),
    "held by somebody who never noted when it began": (
        ObservedFlow(is_held=True),
        Decision(State.STARTING, "its query has been starting for 0 s"),
    ),
    "it falls behind": (held_flow(backlog=BEHIND), Decision(State.LAGGING, BEHIND, SLOW)),
    "what it has not read is soon deleted": (held_flow(expires=EXPIRES), Decision(State.LAGGING, EXPIRES, SLOW)),
    "what matters more comes first": (
        held_flow(expires=EXPIRES, backlog=BEHIND),
        Decision(State.LAGGING, f"{EXPIRES}. {BEHIND}", SLOW),
    ),
    "its rows end elsewhere than in the table": (
        held_flow(rejects=REPEATED, not_fresh=OLD),
        Decision(State.REJECTING, REPEATED, "docs/runbooks/rejecting.md"),
    ),
    "its table is older than it promises, and why": (
        held_flow(not_fresh=OLD, backlog=BEHIND),
        Decision(State.NOT_FRESH, f"{OLD}. {BEHIND}", "docs/runbooks/not-fresh.md"),
    ),
    "records that are soon deleted come before a promise": (
        held_flow(not_fresh=OLD, expires=EXPIRES),
        Decision(State.LAGGING, EXPIRES, SLOW),
    ),
    "stopped, and its table promises otherwise": (
        ObservedFlow(wanted="stopped", wanted_why="moving", not_fresh=OLD),
        Decision(State.NOT_FRESH, f"stopped: moving. {OLD}", "action catch up, or action start", may_start=True),
    ),
    "no progress is worse than too little": (
        held_flow(sign_seconds_ago=200.0, backlog=BEHIND),
        Decision(State.STUCK, "alive, and without a sign of progress for 200 s", STUCK_REMEDY),
    ),
    "its source is away": (held_flow(waits_for=AWAY), Decision(State.WAITING, AWAY)),
    "its source is away, and it says nothing": (
        held_flow(waits_for=AWAY, sign_seconds_ago=200.0),
        Decision(State.STUCK, f"alive, and without a sign of progress for 200 s ({AWAY})", STUCK_REMEDY),
    ),
    "never started": (ObservedFlow(), Decision(State.STARTING, "it does not run", start=True)),
    "never started in a driver that lives": (
        ObservedFlow(is_driver_alive=True),
        Decision(State.STARTING, "it does not run", start=True),
    ),
    "a drain nobody works on": (
        ObservedFlow(wanted="draining"),
        Decision(State.STARTING, "it does not run", start=True),
    ),
    "on its way": (starting_flow(12.0), Decision(State.STARTING, "its driver has been starting for 12 s")),
    "the last second of its way": (
        starting_flow(SLOW_START_SECONDS - 1.0),
        Decision(State.STARTING, "its driver has been starting for 299 s"),
    ),
    "too long on its way": (
        starting_flow(float(SLOW_START_SECONDS)),
        Decision(State.STUCK, "started 300 s ago, and does not run although its driver lives", STUCK_REMEDY),
    ),
    "its driver is up, and has begun with no flow": (
        starting_flow(20.0, is_driver_up=True),
        Decision(State.STARTING, "started 20 s ago"),
    ),
    "its driver starts the flows before it, each in its time": (
        starting_flow(1_000.0, is_driver_up=True, newest_start=first_start(200.0)),
        Decision(State.STARTING, "its driver starts bronze.first first, for 200 s"),
    ),
    "its driver hangs at the start of the flow before it": (
        starting_flow(1_000.0, is_driver_up=True, newest_start=first_start(float(SLOW_START_SECONDS))),
        Decision(State.STUCK, "started 1000 s ago, and does not run although its driver lives", STUCK_REMEDY),
    ),
    "its query starts slowly": (
        held_flow(sign_seconds_ago=None, intended_seconds_ago=137.0, newest_start=first_start(137.0)),
        Decision(State.STARTING, "its query has been starting for 137 s"),
    ),
    "its query hangs at its start": (
        held_flow(
            sign_seconds_ago=None, intended_seconds_ago=SLOW_START_SECONDS + 1.0, newest_start=first_start(301.0)
        ),
        Decision(State.STUCK, "alive, and without a sign of progress for 301 s", STUCK_REMEDY),
    ),
    "nobody looks at it while its driver starts another flow": (
        held_flow(sign_seconds_ago=200.0, newest_start=first_start(190.0)),
        Decision(State.HEALTHY, "at work"),
    ),
    "it gave no sign long before its driver began to start another flow": (
        held_flow(sign_seconds_ago=200.0, newest_start=first_start(70.0)),
        Decision(State.STUCK, "alive, and without a sign of progress for 200 s", STUCK_REMEDY),
    ),
    "it gives no sign since another flow has started": (
        held_flow(sign_seconds_ago=200.0, newest_start=first_start(190.0, is_done=True)),
        Decision(State.STUCK, "alive, and without a sign of progress for 200 s", STUCK_REMEDY),
    ),
    "stopped with the platform": (
        ended_flow(100.0, is_platform_down=True, ended_with_platform=True, sign_seconds_ago=50.0),
        Decision(State.STOPPED, "stopped with the platform", "make up"),
    ),
    "never started, and the platform is down": (
        ObservedFlow(is_platform_down=True),
        Decision(State.STOPPED, "stopped with the platform", "make up"),
    ),
    "its driver had died before the platform was stopped": (
        ended_flow(100.0, is_platform_down=True),
        Decision(State.BACKING_OFF, f"{SILENT} (`make up` starts it again)", "make up"),
    ),
    "failed before the platform was stopped": (
        ended_flow(100.0, is_platform_down=True, ended_with_platform=True, failure=CURABLE),
        Decision(State.BACKING_OFF, "no broker answers (`make up` starts it again)", "make up"),
    ),
    "broken, and the platform is down": (
        ended_flow(100.0, is_platform_down=True, ended_with_platform=True, failure=INCURABLE),
        Decision(State.BROKEN, "column 'bpm' is gone", BROKEN_REMEDY, error="DeclarationError"),
    ),
    "still at work while the platform is stopped": (
        held_flow(is_platform_down=True, ended_with_platform=True),
        Decision(State.HEALTHY, "at work"),
    ),
    "its driver restarts it, and has just let go of it": (
        starting_flow(5_000.0, sign_seconds_ago=3.0),
        Decision(State.STARTING, "last at work 3 s ago"),
    ),
    "its driver has let go of it long ago": (
        starting_flow(5_000.0, sign_seconds_ago=float(SLOW_START_SECONDS)),
        Decision(State.STUCK, "last at work 300 s ago, and does not run although its driver lives", STUCK_REMEDY),
    ),
    "forgiven, in no driver": (
        ended_flow(1.0, attempts=0),
        Decision(State.STARTING, "it does not run", start=True),
    ),
    "ended silently after a healthy spell": (
        ended_flow(1.0, attempts=0, sign_seconds_ago=4.0),
        Decision(State.BACKING_OFF, f"starting again: {SILENT}", "none, it is started now", start=True),
    ),
    "failed after a healthy spell": (
        ended_flow(1.0, attempts=0, failure=CURABLE),
        Decision(State.BACKING_OFF, "starting again: no broker answers", "none, it is started now", start=True),
    ),
    "failed at once": (
        ended_flow(10.0, failure=CURABLE),
        Decision(State.BACKING_OFF, "no broker answers (start 2 follows in 20 s)", BY_ITSELF),
    ),
    "failed in a driver that lives": (
        starting_flow(10.0, failure=CURABLE),
        Decision(State.BACKING_OFF, "no broker answers (start 2 follows in 20 s)", BY_ITSELF),
    ),
    "ended at once, silently": (
        ended_flow(10.0),
        Decision(State.BACKING_OFF, f"{SILENT} (start 2 follows in 20 s)", BY_ITSELF),
    ),
    "the last second of its wait": (
        ended_flow(29.0),
        Decision(State.BACKING_OFF, f"{SILENT} (start 2 follows in 1 s)", BY_ITSELF),
    ),
    "waited long enough": (
        ended_flow(30.0),
        Decision(State.BACKING_OFF, f"starting again: {SILENT}", "none, it is started now", start=True),
    ),
    "waits longer the third time": (
        ended_flow(100.0, attempts=3),
        Decision(State.BACKING_OFF, f"{SILENT} (start 4 follows in 20 s)", BY_ITSELF),
    ),
    "never gives up": (
        ended_flow(float(LONGEST_DELAY_SECONDS), attempts=10_000),
        Decision(State.BACKING_OFF, f"starting again: {SILENT}", "none, it is started now", start=True),
    ),
    "only a person can cure it": (
        ended_flow(10_000.0, failure=INCURABLE),
        Decision(State.BROKEN, "column 'bpm' is gone", BROKEN_REMEDY, error="DeclarationError"),
    ),
    "broken in a driver that lives": (
        starting_flow(1.0, failure=INCURABLE),
        Decision(State.BROKEN, "column 'bpm' is gone", BROKEN_REMEDY, error="DeclarationError"),
    ),
    "broken while its records run out": (
        ended_flow(10_000.0, failure=INCURABLE, expires=EXPIRES),
        Decision(State.BROKEN, f"column 'bpm' is gone. {EXPIRES}", BROKEN_REMEDY, error="DeclarationError"),
    ),
    "stopped while its records run out": (
        ObservedFlow(wanted="stopped", wanted_why="moving", expires=EXPIRES),
        Decision(State.LAGGING, f"stopped: moving. {EXPIRES}", "action catch up, or action start", may_start=True),
    ),
    "nobody wants it": (
        ObservedFlow(wanted="stopped", wanted_why="moving to Berlin"),
        Decision(State.STOPPED, "stopped: moving to Berlin", "action start", may_start=True),
    ),
    "nobody wants it, nobody said why": (
        ObservedFlow(wanted="stopped"),
        Decision(State.STOPPED, "stopped: nobody wants it to run", "action start", may_start=True),
    ),
    "nobody wants what still runs": (
        held_flow(wanted="stopped", wanted_why="moving"),
        Decision(State.STOPPED, "stops after its batch: moving", "action start", may_start=True),
    ),
    "nobody wants what is broken": (
        ended_flow(5.0, wanted="stopped", wanted_why="moving", failure=INCURABLE),
        Decision(State.STOPPED, "stopped: moving", "action start", may_start=True),
    ),
    "nobody wants what still runs, without progress": (
        held_flow(wanted="stopped", wanted_why="moving", sign_seconds_ago=200.0),
        Decision(State.STUCK, "asked to stop, and without a sign of progress for 200 s", STUCK_REMEDY),
    ),
    "its driver ends by itself": (
        restarting_flow(float(FORCE_SECONDS), is_held=True),
        Decision(State.STARTING, "its driver was asked to restart 90 s ago and finishes its current work"),
    ),
    "its driver does not end by itself": (
        restarting_flow(FORCE_SECONDS + 1.0, is_held=True),
        Decision(
            State.STARTING, "its driver was asked to restart 91 s ago and did not: it is ended by force", kill=True
        ),
    ),
    "nor by force": (
        restarting_flow(2 * FORCE_SECONDS + 1.0, is_held=True),
        Decision(
            State.STUCK,
            "its driver was asked to restart 181 s ago, and is still alive after SIGKILL",
            "end its process yourself, it is started again then",
            kill=True,
        ),
    ),
    "nobody wants it, and its driver is ended by force for the others": (
        restarting_flow(FORCE_SECONDS + 1.0, wanted="stopped"),
        Decision(State.STOPPED, "stopped: nobody wants it to run", "action start", may_start=True, kill=True),
    ),
    "its driver has ended and is to come again": (
        ObservedFlow(restart_seconds_ago=20.0),
        Decision(State.STARTING, "it does not run", start=True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_supervisor_decides_each_case_and_says_why_and_what_next(case: str):
    flow, decision = CASES[case]
    assert replace(decide(flow), cause="") == decision


@pytest.mark.parametrize(
    ("flow", "cause"),
    [
        (ObservedFlow(driver="main", attempts=1, intended_seconds_ago=60.0), "driver main"),
        (
            ObservedFlow(
                driver="main", attempts=1, intended_seconds_ago=60.0, failure=replace(CURABLE, error="SOME_ERROR")
            ),
            "",
        ),
        (
            ObservedFlow(
                driver="main",
                attempts=1,
                intended_seconds_ago=60.0,
                failure=Failure("no store", "LAKE_UNREACHABLE", False),
            ),
            "LAKE_UNREACHABLE in driver main",
        ),
        (
            ObservedFlow(wanted="stopped", abandoned=Failure("died", "REWIND_UNFINISHED", True, "job rewind 3")),
            "job rewind 3",
        ),
    ],
)
def test_what_hits_several_flows_has_one_cause(flow: ObservedFlow, cause: str):
    assert decide(flow).cause == cause


def test_a_flow_whose_lease_a_job_holds_is_stopped_and_not_stuck():
    flow = ObservedFlow(wanted="stopped", is_held=True, sign_seconds_ago=9000.0, intended_seconds_ago=9999.0)
    assert decide(flow).state is State.STUCK
    assert decide(replace(flow, job="rewind 3")).state is State.STOPPED


@pytest.mark.parametrize("kind", JobKind)
def test_of_a_flow_that_a_dead_job_keeps_stopped_the_job_is_to_be_ended(kind: JobKind):
    error = f"{kind.upper()}_UNFINISHED"
    assert decide(ObservedFlow(wanted="stopped", abandoned=Failure("died", error, True))).action == ""
    assert alarms.command(AlarmKind.BROKEN, "silver.readings", 7, error) == "sluice jobs"


def test_a_person_may_start_a_stopped_flow_unless_a_job_holds_it():
    flow = ObservedFlow(wanted="stopped", not_fresh=OLD)
    assert (decide(flow).action, decide(replace(flow, job="rewind 3")).action) == ("start", "")
    assert decide(replace(flow, job="rewind 3")).next_step == "none, rewind 3 starts it again"


def test_each_state_has_a_case():
    assert {decision.state for _, decision in CASES.values()} == set(State)


def test_only_what_needs_a_person_or_time_is_sick():
    assert sorted(UNHEALTHY) == ["BACKING OFF", "BROKEN", "LAGGING", "NOT FRESH", "REJECTING", "STUCK"]
    assert [state for state in State if Decision(state, "").is_unhealthy] == [
        state for state in State if state in UNHEALTHY
    ]


def test_the_wait_doubles_up_to_a_quarter_of_an_hour():
    assert [delay_seconds(attempts) for attempts in range(8)] == [0, 30, 60, 120, 240, 480, 900, 900]


SECONDS_AGO = st.none() | st.floats(0, 1e6)
OBSERVED_FLOWS = st.builds(
    ObservedFlow,
    wanted=st.sampled_from(["running", "draining", "stopped"]),
    is_held=st.booleans(),
    is_driver_alive=st.booleans(),
    is_driver_up=st.booleans(),
    newest_start=st.none() | st.builds(Start, st.just("bronze.first"), st.floats(0, 1e6), st.booleans()),
    intended_seconds_ago=SECONDS_AGO,
    attempts=st.integers(0, 5_000),
    failure=st.sampled_from([None, CURABLE, INCURABLE]),
    sign_seconds_ago=SECONDS_AGO,
    waits_for=st.sampled_from([None, AWAY]),
    backlog=st.sampled_from([None, BEHIND]),
    expires=st.sampled_from([None, EXPIRES]),
    restart_seconds_ago=SECONDS_AGO,
    is_platform_down=st.booleans(),
    ended_with_platform=st.booleans(),
)


@given(OBSERVED_FLOWS)
def test_only_what_is_wanted_held_by_nobody_and_curable_is_ever_started(flow: ObservedFlow):
    if decide(flow).start:
        assert flow.wanted != "stopped"
        assert not flow.is_held
        assert not flow.is_platform_down
        assert flow.failure is None or not flow.failure.needs_person


@given(OBSERVED_FLOWS)
def test_nothing_is_started_in_a_driver_that_has_yet_to_restart(flow: ObservedFlow):
    if flow.restart_seconds_ago is not None and flow.is_driver_alive:
        assert not decide(flow).start


@given(OBSERVED_FLOWS)
def test_what_was_started_is_not_started_again_while_it_may_still_come_up(flow: ObservedFlow):
    if flow.failure is None and flow.is_driver_alive and flow.intended_seconds_ago is not None:
        assert not decide(flow).start


@given(OBSERVED_FLOWS, st.sampled_from(["running", "draining"]), st.sampled_from([None, CURABLE]))
def test_whatever_is_wanted_held_by_nobody_curable_and_not_coming_up_is_started_in_the_end(flow, wanted, failure):
    # A driver that was asked to restart has ended by then.
    later_flow = replace(
        flow, intended_seconds_ago=float(LONGEST_DELAY_SECONDS), restart_seconds_ago=None, is_platform_down=False
    )
    is_driver_alive = flow.is_driver_alive and failure is not None
    assert decide(
        replace(later_flow, wanted=wanted, failure=failure, is_held=False, is_driver_alive=is_driver_alive)
    ).start


@given(OBSERVED_FLOWS)
def test_a_driver_is_ended_by_force_only_when_its_restart_is_overdue(flow: ObservedFlow):
    overdue = flow.is_driver_alive and (flow.restart_seconds_ago or 0) > FORCE_SECONDS
    assert decide(flow).kill is overdue


@given(OBSERVED_FLOWS)
def test_whatever_is_sick_says_why_and_what_to_do(flow: ObservedFlow):
    decision = decide(flow)
    assert decision.reason
    assert decision.next_step or not decision.is_unhealthy
