"""What the supervisor does about a driver, case by case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from include.control.decide import LONGEST_DELAY_SECONDS, START_SECONDS, Decision, Seen, State, decide, delay_seconds

A, B, AB = frozenset({"a"}), frozenset({"b"}), frozenset({"a", "b"})
NONE: frozenset[str] = frozenset()
WAITED = START_SECONDS + 1
SILENT = "it ended without a word: read its log"

CASES = {
    "nobody wants it": (Seen(NONE, NONE), State.STOPPED, False, "nobody wants its flows to run"),
    "nobody wants what still runs": (Seen(NONE, AB, 5.0, True), State.STOPPED, False, "nobody wants its flows to run"),
    "all is well": (Seen(AB, AB, 500.0, True), State.HEALTHY, False, "every flow holds its lease"),
    "held by a driver nobody launched": (Seen(A, A), State.HEALTHY, False, "every flow holds its lease"),
    "a stopped flow is not missed": (Seen(A, AB, 500.0, True), State.HEALTHY, False, "every flow holds its lease"),
    "never started": (Seen(AB, NONE), State.STARTING, True, "it was never started"),
    "on its way": (Seen(AB, NONE, 12.0, True, 1), State.STARTING, False, "launched 12 s ago"),
    "half of it is missing, on its way": (Seen(AB, A, 12.0, True, 1), State.STARTING, False, "launched 12 s ago"),
    "too long on its way": (
        Seen(AB, A, float(START_SECONDS), True, 1),
        State.STUCK,
        False,
        "launched 180 s ago and still without b: read its log, then kill it",
    ),
    "without any of its flows": (
        Seen(AB, NONE, 1000.0, True, 1),
        State.STUCK,
        False,
        "launched 1000 s ago and still without a, b: read its log, then kill it",
    ),
    "died after a healthy spell": (Seen(AB, NONE, 1.0, False, 0), State.STARTING, True, f"starting again: {SILENT}"),
    "died of something it named": (
        Seen(AB, NONE, 1.0, False, 0, "a: the disk is full"),
        State.STARTING,
        True,
        "starting again: a: the disk is full",
    ),
    "died at once": (
        Seen(AB, NONE, 10.0, False, 1, "a: no broker"),
        State.BACKING_OFF,
        False,
        "a: no broker (next start in 20 s, attempt 2)",
    ),
    "died at once, silently": (
        Seen(AB, B, 10.0, False, 1),
        State.BACKING_OFF,
        False,
        f"{SILENT} (next start in 20 s, attempt 2)",
    ),
    "waited long enough": (Seen(AB, NONE, 30.0, False, 1), State.STARTING, True, f"starting again: {SILENT}"),
    "waits longer the third time": (
        Seen(AB, NONE, 100.0, False, 3),
        State.BACKING_OFF,
        False,
        f"{SILENT} (next start in 20 s, attempt 4)",
    ),
    "never gives up": (
        Seen(AB, NONE, float(LONGEST_DELAY_SECONDS), False, 10_000),
        State.STARTING,
        True,
        f"starting again: {SILENT}",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_supervisor_decides_each_case_and_says_why(case: str):
    seen, state, start, reason = CASES[case]
    assert decide(seen) == Decision(state, reason, start)


@pytest.mark.parametrize(
    ("state", "sick"),
    [
        (State.HEALTHY, False),
        (State.STARTING, False),
        (State.STOPPED, False),
        (State.BACKING_OFF, True),
        (State.STUCK, True),
    ],
)
def test_only_what_needs_a_person_or_time_is_sick(state: State, sick: bool):
    assert Decision(state, "").is_sick is sick


FLOWS = st.frozensets(st.sampled_from("abc"))
SEEN = st.builds(
    Seen,
    wanted=FLOWS,
    held=FLOWS,
    launched_seconds_ago=st.none() | st.floats(0, 1e6),
    is_launch_alive=st.booleans(),
    attempts=st.integers(0, 5_000),
    failure=st.none() | st.text(min_size=1),
)


@given(SEEN)
def test_nothing_is_ever_started_beside_a_launch_that_may_still_live_or_flows_that_all_run(seen: Seen):
    decision = decide(seen)
    if decision.start:
        assert seen.wanted - seen.held
        assert seen.launched_seconds_ago is None or not seen.is_launch_alive
        assert decision.state is State.STARTING


@given(SEEN)
def test_whatever_is_dead_and_wanted_is_started_in_the_end(seen: Seen):
    if seen.wanted - seen.held and not seen.is_launch_alive:
        later = Seen(seen.wanted, seen.held, float(LONGEST_DELAY_SECONDS), False, seen.attempts, seen.failure)
        assert decide(later).start


def test_the_wait_doubles_up_to_a_quarter_of_an_hour():
    assert [delay_seconds(attempts) for attempts in range(8)] == [0, 30, 60, 120, 240, 480, 900, 900]
