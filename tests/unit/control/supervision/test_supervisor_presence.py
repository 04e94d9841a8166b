"""Whether a supervisor is at work, as `status` and the watchdog report it."""

import pytest

from include.control.supervision import shutdown, supervision, supervisor_presence
from include.control.supervision.shutdown import Shutdown
from include.control.supervision.supervisor_presence import LATE_SECONDS, Presence

DOWN = Shutdown(300.0, frozenset())
CASES = {
    "the supervisor is at work": (Presence(20.0), None),
    "a second `make up` beside it": (Presence(20.0, 1.0), None),
    "a moment before it is late": (Presence(float(LATE_SECONDS)), None),
    "it is late": (Presence(LATE_SECONDS + 60.0), "The supervisor is not at work, it last was 4 min ago"),
    "it is late, since `make up` has failed": (Presence(900.0, 600.0), "The supervisor is not at work"),
    "nothing was ever started": (Presence(), "The supervisor has not been at work yet"),
    "the first start": (Presence(None, 1.0), "The platform is starting"),
    "a later start": (Presence(9_000.0, 1.0), "The platform is starting"),
    "it is down": (Presence(310.0, 9_000.0, DOWN), "The platform is down: `make down` stopped it 5 min ago"),
    "it is down since a moment": (Presence(20.0, 90.0, Shutdown(4.0, frozenset())), "The platform is down"),
    "it starts again": (Presence(310.0, 1.0, DOWN), "The platform is starting"),
}


@pytest.mark.parametrize("case", CASES)
def test_whoever_reads_the_states_is_told_why_nobody_acts_on_them(case: str):
    presence, absence = CASES[case]
    assert (presence.absence is None) if absence is None else (presence.absence or "").startswith(absence)


def test_it_is_read_from_what_make_up_make_down_and_the_supervisor_leave_behind(engine):
    assert supervisor_presence.read(engine) == Presence()
    supervision.heartbeat(engine, supervisor_presence.STARTER)
    assert supervisor_presence.read(engine).is_starting
    supervision.heartbeat(engine)
    assert supervisor_presence.read(engine).absence is None
    shutdown.begin(engine, {1})
    assert "The platform is down" in (supervisor_presence.read(engine).absence or "")
    shutdown.end(engine)
    assert supervisor_presence.read(engine).absence is None
