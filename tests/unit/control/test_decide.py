"""What the supervisor does about a flow, case by case."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.control.decide import (
    FORCE_SECONDS,
    LONGEST_DELAY_SECONDS,
    SICK,
    SLOW_START_SECONDS,
    STUCK_REMEDY,
    STUCK_SECONDS,
    Decision,
    State,
    decide,
    delay_seconds,
)
from include.control.observed_flow import Failure, ObservedFlow, Start

CURABLE = Failure("no broker answers", "Unreachable", needs_person=False)
INCURABLE = Failure("column 'bpm' is gone", "DeclarationError", needs_person=True)
SILENT = "its driver ended without a word: read its log"
BY_ITSELF = "none, it is started again; sooner by action restart"
TO_MEND = "docs/runbooks/broken.md on DeclarationError, then action restart"
AWAY = "no broker answers at kafka:9092"
BEHIND = "9 h behind, and further every minute"
EXPIRES = "partition 3 is deleted unread in 40 h"
SLOW = "see what takes its time: make status and its driver's log"


def held(**other) -> ObservedFlow:
    return ObservedFlow(
        **{"is_held": True, "is_driver_alive": True, "intended_seconds_ago": 500.0, "sign_seconds_ago": 5.0} | other
    )


def coming_up(ago: float, **other) -> ObservedFlow:
    return ObservedFlow(is_driver_alive=True, intended_seconds_ago=ago, attempts=1, **other)


def gone(ago: float, attempts: int = 1, **other) -> ObservedFlow:
    return ObservedFlow(intended_seconds_ago=ago, attempts=attempts, **other)


def starts(seconds_ago: float, is_done: bool = False) -> Start:
    return Start("bronze.first", seconds_ago, is_done)


def asked(seconds_ago: float, **other) -> ObservedFlow:
    return ObservedFlow(is_driver_alive=True, restart_seconds_ago=seconds_ago, **other)


REPEATED, OLD = "of the newest 100 rows 0 were written: 100 repeated", "what it lacks is 12 min old"
CASES = {
    "all is well": (held(), Decision(State.HEALTHY, "at work")),
    "it drains": (held(wanted="draining"), Decision(State.HEALTHY, "reads to the end, then stops")),
    "held by a driver nobody launched": (
        ObservedFlow(is_held=True, sign_seconds_ago=5.0),
        Decision(State.HEALTHY, "at work"),
    ),
    "held, its driver's own lease is gone": (held(is_driver_alive=False), Decision(State.HEALTHY, "at work")),
    "its query has yet to say something": (
        held(sign_seconds_ago=None, intended_seconds_ago=20.0),
        Decision(State.STARTING, "its query has been starting for 20 s"),
    ),
    "the last second before it is stuck": (
        held(sign_seconds_ago=float(STUCK_SECONDS)),
        Decision(State.HEALTHY, "at work"),
    ),
    "it lives without progress": (
        held(sign_seconds_ago=STUCK_SECONDS + 1.0),
        Decision(State.STUCK, "alive, and without a sign of progress for 121 s", STUCK_REMEDY),
    ),
    "its query never said anything": (
        held(sign_seconds_ago=None, intended_seconds_ago=500.0),
        Decision(State.STUCK, "alive, and without a sign of progress for 500 s", STUCK_REMEDY),
    ),
    "its query has yet to say something, and its source is away": (
        held(sign_seconds_ago=None, intended_seconds_ago=20.0, waits_for=AWAY),
        Decision(State.STARTING, "its query has been starting for 20 s"),
    ),
    "held by somebody who never noted when it began": (
        ObservedFlow(is_held=True),
        Decision(State.STARTING, "its query has been starting for 0 s"),
    ),
    "it falls behind": (held(backlog=BEHIND), Decision(State.LAGGING, BEHIND, SLOW)),
    "what it has not read is soon deleted": (held(expires=EXPIRES), Decision(State.LAGGING, EXPIRES, SLOW)),
    "what matters more comes first": (
        held(expires=EXPIRES, backlog=BEHIND),
        Decision(State.LAGGING, f"{EXPIRES}. {BEHIND}", SLOW),
    ),
    "its rows end elsewhere than in the table": (
        held(rejects=REPEATED, not_fresh=OLD),
        Decision(State.REJECTING, REPEATED, "docs/runbooks/rejecting.md"),
    ),
    "its table is older than it promises, and why": (
        held(not_fresh=OLD, backlog=BEHIND),
        Decision(State.NOT_FRESH, f"{OLD}. {BEHIND}", "docs/runbooks/not-fresh.md"),
    ),
    "records that are soon deleted come before a promise": (
        held(not_fresh=OLD, expires=EXPIRES),
        Decision(State.LAGGING, EXPIRES, SLOW),
    ),
    "stopped, and its table promises otherwise": (
        ObservedFlow(wanted="stopped", wanted_why="moving", not_fresh=OLD),
        Decision(State.NOT_FRESH, f"stopped: moving. {OLD}", "action catch up, or action start"),
    ),
    "no progress is worse than too little": (
        held(sign_seconds_ago=200.0, backlog=BEHIND),
        Decision(State.STUCK, "alive, and without a sign of progress for 200 s", STUCK_REMEDY),
    ),
    "its source is away": (held(waits_for=AWAY), Decision(State.WAITING, AWAY)),
    "its source is away, and it says nothing": (
        held(waits_for=AWAY, sign_seconds_ago=200.0),
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
    "on its way": (coming_up(12.0), Decision(State.STARTING, "its driver has been starting for 12 s")),
    "the last second of its way": (
        coming_up(SLOW_START_SECONDS - 1.0),
        Decision(State.STARTING, "its driver has been starting for 299 s"),
    ),
    "too long on its way": (
        coming_up(float(SLOW_START_SECONDS)),
        Decision(State.STUCK, "started 300 s ago, and does not run although its driver lives", STUCK_REMEDY),
    ),
    "its driver is up, and has begun with no flow": (
        coming_up(20.0, is_driver_up=True),
        Decision(State.STARTING, "started 20 s ago"),
    ),
    "its driver starts the flows before it, each in its time": (
        coming_up(1_000.0, is_driver_up=True, newest_start=starts(200.0)),
        Decision(State.STARTING, "its driver starts bronze.first first, for 200 s"),
    ),
    "its driver hangs at the start of the flow before it": (
        coming_up(1_000.0, is_driver_up=True, newest_start=starts(float(SLOW_START_SECONDS))),
        Decision(State.STUCK, "started 1000 s ago, and does not run although its driver lives", STUCK_REMEDY),
    ),
    "its query starts slowly": (
        held(sign_seconds_ago=None, intended_seconds_ago=137.0, newest_start=starts(137.0)),
        Decision(State.STARTING, "its query has been starting for 137 s"),
    ),
    "its query hangs at its start": (
        held(sign_seconds_ago=None, intended_seconds_ago=SLOW_START_SECONDS + 1.0, newest_start=starts(301.0)),
        Decision(State.STUCK, "alive, and without a sign of progress for 301 s", STUCK_REMEDY),
    ),
    "nobody looks at it while its driver starts another flow": (
        held(sign_seconds_ago=200.0, newest_start=starts(190.0)),
        Decision(State.HEALTHY, "at work"),
    ),
    "it gave no sign long before its driver began to start another flow": (
        held(sign_seconds_ago=200.0, newest_start=starts(70.0)),
        Decision(State.STUCK, "alive, and without a sign of progress for 200 s", STUCK_REMEDY),
    ),
    "it gives no sign since another flow has started": (
        held(sign_seconds_ago=200.0, newest_start=starts(190.0, is_done=True)),
        Decision(State.STUCK, "alive, and without a sign of progress for 200 s", STUCK_REMEDY),
    ),
    "stopped with the platform": (
        gone(100.0, is_platform_down=True, ended_with_platform=True, sign_seconds_ago=50.0),
        Decision(State.STOPPED, "stopped with the platform", "make up"),
    ),
    "never started, and the platform is down": (
        ObservedFlow(is_platform_down=True),
        Decision(State.STOPPED, "stopped with the platform", "make up"),
    ),
    "its driver had died before the platform was stopped": (
        gone(100.0, is_platform_down=True),
        Decision(State.BACKING_OFF, f"{SILENT} (`make up` starts it again)", "make up"),
    ),
    "failed before the platform was stopped": (
        gone(100.0, is_platform_down=True, ended_with_platform=True, failure=CURABLE),
        Decision(State.BACKING_OFF, "no broker answers (`make up` starts it again)", "make up"),
    ),
    "broken, and the platform is down": (
        gone(100.0, is_platform_down=True, ended_with_platform=True, failure=INCURABLE),
        Decision(State.BROKEN, "column 'bpm' is gone", TO_MEND, error="DeclarationError"),
    ),
    "still at work while the platform is stopped": (
        held(is_platform_down=True, ended_with_platform=True),
        Decision(State.HEALTHY, "at work"),
    ),
    "its driver starts it anew, and has just let go of it": (
        coming_up(5_000.0, sign_seconds_ago=3.0),
        Decision(State.STARTING, "last at work 3 s ago"),
    ),
    "its driver has let go of it long ago": (
        coming_up(5_000.0, sign_seconds_ago=float(SLOW_START_SECONDS)),
        Decision(State.STUCK, "last at work 300 s ago, and does not run although its driver lives", STUCK_REMEDY),
    ),
    "forgiven, in no driver": (
        gone(1.0, attempts=0),
        Decision(State.STARTING, "it does not run", start=True),
    ),
    "ended silently after a healthy spell": (
        gone(1.0, attempts=0, sign_seconds_ago=4.0),
        Decision(State.BACKING_OFF, f"starting again: {SILENT}", "none, it is started now", start=True),
    ),
    "failed after a healthy spell": (
        gone(1.0, attempts=0, failure=CURABLE),
        Decision(State.BACKING_OFF, "starting again: no broker answers", "none, it is started now", start=True),
    ),
    "failed at once": (
        gone(10.0, failure=CURABLE),
        Decision(State.BACKING_OFF, "no broker answers (start 2 follows in 20 s)", BY_ITSELF),
    ),
    "failed in a driver that lives": (
        coming_up(10.0, failure=CURABLE),
        Decision(State.BACKING_OFF, "no broker answers (start 2 follows in 20 s)", BY_ITSELF),
    ),
    "ended at once, silently": (
        gone(10.0),
        Decision(State.BACKING_OFF, f"{SILENT} (start 2 follows in 20 s)", BY_ITSELF),
    ),
    "the last second of its wait": (
        gone(29.0),
        Decision(State.BACKING_OFF, f"{SILENT} (start 2 follows in 1 s)", BY_ITSELF),
    ),
    "waited long enough": (
        gone(30.0),
        Decision(State.BACKING_OFF, f"starting again: {SILENT}", "none, it is started now", start=True),
    ),
    "waits longer the third time": (
        gone(100.0, attempts=3),
        Decision(State.BACKING_OFF, f"{SILENT} (start 4 follows in 20 s)", BY_ITSELF),
    ),
    "never gives up": (
        gone(float(LONGEST_DELAY_SECONDS), attempts=10_000),
        Decision(State.BACKING_OFF, f"starting again: {SILENT}", "none, it is started now", start=True),
    ),
    "only a person can cure it": (
        gone(10_000.0, failure=INCURABLE),
        Decision(State.BROKEN, "column 'bpm' is gone", TO_MEND, error="DeclarationError"),
    ),
    "broken in a driver that lives": (
        coming_up(1.0, failure=INCURABLE),
        Decision(State.BROKEN, "column 'bpm' is gone", TO_MEND, error="DeclarationError"),
    ),
    "broken while its records run out": (
        gone(10_000.0, failure=INCURABLE, expires=EXPIRES),
        Decision(State.BROKEN, f"column 'bpm' is gone. {EXPIRES}", TO_MEND, error="DeclarationError"),
    ),
    "stopped while its records run out": (
        ObservedFlow(wanted="stopped", wanted_why="moving", expires=EXPIRES),
        Decision(State.LAGGING, f"stopped: moving. {EXPIRES}", "action catch up, or action start"),
    ),
    "nobody wants it": (
        ObservedFlow(wanted="stopped", wanted_why="moving to Berlin"),
        Decision(State.STOPPED, "stopped: moving to Berlin", "action start"),
    ),
    "nobody wants it, nobody said why": (
        ObservedFlow(wanted="stopped"),
        Decision(State.STOPPED, "stopped: nobody wants it to run", "action start"),
    ),
    "nobody wants what still runs": (
        held(wanted="stopped", wanted_why="moving"),
        Decision(State.STOPPED, "stops after its batch: moving", "action start"),
    ),
    "nobody wants what is broken": (
        gone(5.0, wanted="stopped", wanted_why="moving", failure=INCURABLE),
        Decision(State.STOPPED, "stopped: moving", "action start"),
    ),
    "nobody wants what still runs, without progress": (
        held(wanted="stopped", wanted_why="moving", sign_seconds_ago=200.0),
        Decision(State.STUCK, "asked to stop, and without a sign of progress for 200 s", STUCK_REMEDY),
    ),
    "its driver ends by itself": (
        asked(float(FORCE_SECONDS), is_held=True),
        Decision(State.STARTING, "its driver was asked to restart 90 s ago and ends what it has in hand"),
    ),
    "its driver does not end by itself": (
        asked(FORCE_SECONDS + 1.0, is_held=True),
        Decision(
            State.STARTING, "its driver was asked to restart 91 s ago and did not: it is ended by force", kill=True
        ),
    ),
    "nor by force": (
        asked(2 * FORCE_SECONDS + 1.0, is_held=True),
        Decision(
            State.STUCK,
            "its driver was asked to restart 181 s ago, and outlives being ended by force",
            "end its process yourself, it is started again then",
            kill=True,
        ),
    ),
    "nobody wants it, and its driver is ended by force for the others": (
        asked(FORCE_SECONDS + 1.0, wanted="stopped"),
        Decision(State.STOPPED, "stopped: nobody wants it to run", "action start", kill=True),
    ),
    "its driver has ended and is to come again": (
        ObservedFlow(restart_seconds_ago=20.0),
        Decision(State.STARTING, "it does not run", start=True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_supervisor_decides_each_case_and_says_why_and_what_next(case: str):
    seen, decision = CASES[case]
    assert decide(seen) == decision


def test_each_state_has_a_case():
    assert {decision.state for _, decision in CASES.values()} == set(State)


def test_only_what_needs_a_person_or_time_is_sick():
    assert sorted(SICK) == ["BACKING OFF", "BROKEN", "LAGGING", "NOT FRESH", "REJECTING", "STUCK"]
    assert [state for state in State if Decision(state, "").is_sick] == [state for state in State if state in SICK]


def test_the_wait_doubles_up_to_a_quarter_of_an_hour():
    assert [delay_seconds(attempts) for attempts in range(8)] == [0, 30, 60, 120, 240, 480, 900, 900]


AGO = st.none() | st.floats(0, 1e6)
SEEN = st.builds(
    ObservedFlow,
    wanted=st.sampled_from(["running", "draining", "stopped"]),
    is_held=st.booleans(),
    is_driver_alive=st.booleans(),
    is_driver_up=st.booleans(),
    newest_start=st.none() | st.builds(Start, st.just("bronze.first"), st.floats(0, 1e6), st.booleans()),
    intended_seconds_ago=AGO,
    attempts=st.integers(0, 5_000),
    failure=st.sampled_from([None, CURABLE, INCURABLE]),
    sign_seconds_ago=AGO,
    waits_for=st.sampled_from([None, AWAY]),
    backlog=st.sampled_from([None, BEHIND]),
    expires=st.sampled_from([None, EXPIRES]),
    restart_seconds_ago=AGO,
    is_platform_down=st.booleans(),
    ended_with_platform=st.booleans(),
)


@given(SEEN)
def test_only_what_is_wanted_held_by_nobody_and_curable_is_ever_started(seen: ObservedFlow):
    if decide(seen).start:
        assert seen.wanted != "stopped"
        assert not seen.is_held
        assert not seen.is_platform_down
        assert seen.failure is None or not seen.failure.needs_person


@given(SEEN)
def test_nothing_is_started_in_a_driver_that_has_yet_to_restart(seen: ObservedFlow):
    if seen.restart_seconds_ago is not None and seen.is_driver_alive:
        assert not decide(seen).start


@given(SEEN)
def test_what_was_started_is_not_started_again_while_it_may_still_come_up(seen: ObservedFlow):
    if seen.failure is None and seen.is_driver_alive and seen.intended_seconds_ago is not None:
        assert not decide(seen).start


@given(SEEN, st.sampled_from(["running", "draining"]), st.sampled_from([None, CURABLE]))
def test_whatever_is_wanted_held_by_nobody_curable_and_not_coming_up_is_started_in_the_end(seen, wanted, failure):
    # Whatever was asked of the driver, it has ended by then.
    later = replace(
        seen, intended_seconds_ago=float(LONGEST_DELAY_SECONDS), restart_seconds_ago=None, is_platform_down=False
    )
    is_driver_alive = seen.is_driver_alive and failure is not None
    assert decide(replace(later, wanted=wanted, failure=failure, is_held=False, is_driver_alive=is_driver_alive)).start


@given(SEEN)
def test_a_driver_is_ended_by_force_only_when_its_restart_is_overdue(seen: ObservedFlow):
    overdue = seen.is_driver_alive and (seen.restart_seconds_ago or 0) > FORCE_SECONDS
    assert decide(seen).kill is overdue


@given(SEEN)
def test_whatever_is_sick_says_why_and_what_to_do(seen: ObservedFlow):
    decision = decide(seen)
    assert decision.reason
    assert decision.next_step or not decision.is_sick
