"""Each incident is notified once. It lasts from the moment something is unhealthy until it is healthy."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, text

from include.control.flows import incidents
from include.control.store import database
from include.control.store.schema import incidents as incident_table
from tests.support.waiting import wait_until

FLOW = "silver.a"


def begin(engine: Engine, state: str, reason: str = "why", target: str = FLOW) -> None:
    with database.transaction(engine) as connection:
        incidents.begin(connection, target, state, reason)


def end(engine: Engine, target: str = FLOW) -> None:
    with database.transaction(engine) as connection:
        incidents.end(connection, target)


def notify(engine: Engine) -> list[tuple[str, str, bool]]:
    """Marks all new incidents as notified, and returns them."""
    unsent = incidents.unsent(engine)
    for notice in unsent:
        incidents.mark_sent(engine, notice)
    return [(notice.first.target, notice.first.state, notice.is_over) for notice in unsent]


def test_an_incident_is_told_once_however_long_it_lasts(engine):
    begin(engine, "STUCK", "without a sign of progress for 121 s")
    begin(engine, "STUCK", "without a sign of progress for 181 s")
    [notice] = incidents.unsent(engine)
    assert (notice.first.subject, notice.first.reason) == (FLOW, "without a sign of progress for 121 s")
    assert notify(engine) == [(FLOW, "STUCK", False)]
    begin(engine, "STUCK")
    assert notify(engine) == []


def test_whoever_died_before_it_told_somebody_tells_it_later(engine):
    begin(engine, "STUCK")
    assert incidents.unsent(engine) == incidents.unsent(engine) != []


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (["STUCK", "BACKING OFF", "STUCK"], ["STUCK"]),
        (["BACKING OFF", "BROKEN"], ["BACKING OFF", "BROKEN"]),
        (["BROKEN", "BROKEN"], ["BROKEN"]),
        (["BROKEN", "BACKING OFF", "BROKEN"], ["BROKEN"]),
        (["BACKING OFF", "LAGGING", "STUCK", "LAGGING"], ["BACKING OFF", "LAGGING"]),
        (["LAGGING", "BROKEN", "STUCK"], ["LAGGING", "BROKEN"]),
    ],
)
def test_while_something_is_sick_only_that_it_needs_a_person_or_loses_data_is_new_news(
    engine, states: list[str], told: list[str]
):
    notified_states = []
    for state in states:
        begin(engine, state)
        notified_states += [state for _, state, _ in notify(engine)]
    assert notified_states == told


def test_what_was_well_in_between_is_new_news(engine):
    begin(engine, "STUCK")
    assert len(notify(engine)) == 1
    end(engine)
    end(engine)
    assert notify(engine) == [(FLOW, "STUCK", True)]
    begin(engine, "STUCK")
    assert notify(engine) == [(FLOW, "STUCK", False)]


def test_what_is_over_before_anybody_heard_of_it_is_told_as_over_oldest_first(engine):
    begin(engine, "BACKING OFF")
    begin(engine, "BROKEN")
    begin(engine, "STUCK", target="gold.b")
    end(engine, "gold.b")
    assert notify(engine) == [(FLOW, "BROKEN", False), ("gold.b", "STUCK", True)]
    end(engine)
    assert notify(engine) == [(FLOW, "BROKEN", True)]
    assert notify(engine) == []


def begin_of_driver(engine: Engine, *flows: str) -> None:
    with database.transaction(engine) as connection:
        for flow in flows:
            incidents.begin(connection, flow, "BACKING OFF", "its driver ended", cause="driver main")


def test_the_flows_of_a_driver_that_ended_are_one_message_and_their_end_is_another(engine):
    flows = ["gold.c", "silver.a", "silver.b"]
    begin_of_driver(engine, *flows)
    [notice] = incidents.unsent(engine)
    assert (notice.title, notice.subjects) == ("BACKING OFF driver main (3 flows)", flows)
    incidents.mark_sent(engine, notice)
    end(engine, "silver.a")
    end(engine, "silver.b")
    assert incidents.unsent(engine) == []
    end(engine, "gold.c")
    [notice] = incidents.unsent(engine)
    assert (notice.is_over, sorted(notice.subjects)) == (True, flows)
    incidents.mark_sent(engine, notice)
    assert incidents.unsent(engine) == []


def test_a_flow_that_joins_a_cause_that_was_sent_is_no_second_message(engine):
    begin_of_driver(engine, "silver.a")
    assert len(notify(engine)) == 1
    begin_of_driver(engine, "silver.b")
    end(engine, "silver.a")
    assert notify(engine) == []
    end(engine, "silver.b")
    assert notify(engine) == [("silver.b", "BACKING OFF", True)]
    begin_of_driver(engine, "silver.a")
    assert len(notify(engine)) == 1


def test_what_is_well_and_never_was_sick_is_no_news(engine):
    end(engine)
    assert incidents.unsent(engine) == []


def test_two_watchdogs_at_one_moment_open_one_incident(on_postgresql):
    with ThreadPoolExecutor(1) as pool:
        with database.transaction(on_postgresql) as connection:
            incidents.begin(connection, "supervise", "STUCK", "why")
            second_begin = pool.submit(begin, on_postgresql, "STUCK", target="supervise")
            blocked_query = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            wait_until(lambda: second_begin.done() or connection.execute(blocked_query).scalar_one(), 2)
        second_begin.result()
    begin(on_postgresql, "STUCK", target="supervise")
    assert len(notify(on_postgresql)) == 1


@pytest.mark.parametrize(("state", "target"), [("WINDOW FAILED", "window silver.a"), ("STUCK", FLOW)])
def test_an_incident_of_a_process_of_the_previous_build_has_the_same_target(engine, state, target):
    with database.transaction(engine) as connection:
        values = {"target": target, "state": state, "reason": "why", "error": "", "began_at": 1}
        connection.execute(incident_table.insert().values(values))
    [notice] = incidents.unsent(engine)
    assert (notice.first.subject, notice.first.target) == (FLOW, target)
