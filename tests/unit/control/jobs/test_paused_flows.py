"""Flows that jobs hold still: what a person asks happens when the last job lets go, and no failure outlives that."""

from functools import partial

import pytest
from sqlalchemy import Engine, select, update

from include.control import commands, lease, orders, resets, schedule
from include.control.commands import Action, Command
from include.control.decide import State
from include.control.jobs import backfills, rewinds
from include.control.jobs.backfills import Backfill
from include.control.jobs.rewinds import RestorePoint
from include.control.observed_flow import Failure
from include.control.process import Holder
from include.control.store import database
from include.control.store.schema import audits, desired, ticks
from include.control.supervision import supervision
from include.validation.slices import Slice

FLOW, OTHER = "silver.held", "silver.other"
TABLE, ABOVE = "silver.held", "bronze.above"
INCURABLE = Failure("column 'bpm' is gone", "DeclarationError", needs_person=True)


def ask(engine: Engine, action: Action, flow: str = FLOW) -> str:
    return commands.execute(engine, Command(action, (flow,), "ada", "a test"))[0].removeprefix(f"{flow}: ")


def order(engine: Engine, flow: str = FLOW) -> orders.Order:
    return orders.read(engine, "main", [flow]).of[flow]


def want(engine: Engine, state: str) -> None:
    with database.transaction(engine) as connection:
        orders.lock(connection, [FLOW])
        commands.set_wanted(connection, FLOW, state, "a test")


def refresh(engine: Engine) -> Backfill:
    """A full refresh of the flow's table, which has stopped it."""
    return held_by(engine, TABLE)


def backfill(engine: Engine) -> Backfill:
    """Of the table that it reads."""
    return held_by(engine, ABOVE)


def held_by(engine: Engine, table: str) -> Backfill:
    one = backfills.begin(engine, table, Slice(), "bob")
    backfills.stop_readers(engine, one, [FLOW])
    return one


def by_backfill(engine: Engine):
    return partial(backfills.finish, engine, backfill(engine), 7, (1, 1), [])


def by_refresh(engine: Engine):
    return partial(backfills.fail_before_replace, engine, refresh(engine), "it cannot be made")


def by_rewind(engine: Engine):
    cut = {TABLE: RestorePoint(1, None, {FLOW: 1}, 7.0)}
    one = rewinds.plan(engine, TABLE, "2026-03-01", cut, [], "bob", "a bug")
    rewinds.stop(engine, one)
    return partial(rewinds.finish, engine, one, "done")


JOBS = [by_backfill, by_refresh, by_rewind]

# action, what was wanted before the job: what is wanted after it, and what is answered where that is nothing.
WORDS = {
    (Action.STOP, "running"): ("stopped", "it is stopped"),
    (Action.STOP, "draining"): ("stopped", "it is stopped"),
    (Action.STOP, "stopped"): ("stopped", "it is stopped"),
    (Action.START, "running"): ("running", "it is running"),
    (Action.START, "stopped"): ("running", "it is running"),
    (Action.RESTART, "running"): ("running", "it starts anew"),
    (Action.RESTART, "draining"): ("draining", "it starts anew"),
    (Action.RESTART, "stopped"): ("stopped", "nothing done"),
    (Action.DRAIN, "running"): ("draining", "it is draining"),
    (Action.DRAIN, "stopped"): ("stopped", "nothing done"),
    (Action.CATCH_UP, "stopped"): ("draining", "it is draining"),
    (Action.CATCH_UP, "running"): ("running", "nothing done"),
    (Action.RELEASE, "stopped"): ("stopped", "nothing done"),
}


@pytest.mark.parametrize("hold", JOBS)
@pytest.mark.parametrize(("action", "before"), WORDS)
def test_what_a_person_asks_of_a_flow_that_is_held_still_happens_when_it_is_let_go(engine, hold, action, before):
    after, answer = WORDS[action, before]
    want(engine, before)
    let_go = hold(engine)
    for _ in range(2):
        said = ask(engine, action)
        assert answer in said and "still holds it" in said
        assert order(engine).state == "stopped", "it was woken while it was held still"
    let_go()
    assert order(engine).state == after
    assert ask(engine, Action.START) == "is started"


@pytest.mark.parametrize("turns", [(0, 1), (1, 0)])
def test_of_two_unfinished_jobs_that_hold_one_flow_the_last_to_end_lets_it_go_on(engine: Engine, turns):
    ends = [by_refresh(engine), by_backfill(engine)]
    assert "still hold it" in ask(engine, Action.DRAIN)
    ends[turns[0]]()
    assert order(engine).state == "stopped", "the other job is still at work"
    ends[turns[1]]()
    assert order(engine).state == "draining"


def test_the_second_job_remembers_what_was_wanted_before_the_first(engine: Engine):
    want(engine, "draining")
    first, second = by_refresh(engine), by_backfill(engine)
    first()
    second()
    assert order(engine).state == "draining"


def test_a_retry_stops_a_flow_again_that_somebody_woke(engine: Engine):
    one = backfill(engine)
    with database.transaction(engine) as connection:
        connection.execute(update(desired).values(state="draining", reason="by an earlier build"))
    backfills.stop_readers(engine, one, [FLOW])
    assert order(engine).state == "stopped"
    backfills.fail_before_replace(engine, one, "it cannot be made")
    assert order(engine).state == "draining"


@pytest.mark.parametrize("hold", JOBS)
def test_a_schedule_never_wakes_a_flow_that_is_held_still(engine: Engine, hold):
    def follow(cron: str | None = "* * * * *") -> dict[str, str]:
        return schedule.follow(engine, {FLOW: cron}, lambda _cron, at: at + 60)

    follow()
    let_go = hold(engine)
    with database.transaction(engine) as connection:
        connection.execute(update(ticks).values(at=ticks.c.at - 3600))
    assert (follow(), follow(None)) == ({}, {})
    assert order(engine).state == "stopped"
    let_go()
    assert follow() == {FLOW: "reads what its source holds now, then stops"}


@pytest.mark.parametrize("hold", JOBS)
def test_a_stop_keeps_the_schedule_from_starting_a_flow_that_is_held_still(engine: Engine, hold):
    schedule.follow(engine, {FLOW: "* * * * *"}, lambda _cron, at: at + 60)
    let_go = hold(engine)
    ask(engine, Action.STOP)
    let_go()
    assert schedule.follow(engine, {FLOW: "* * * * *"}, lambda _cron, at: at) == {}
    assert order(engine).state == "stopped"


@pytest.mark.parametrize("hold", JOBS)
def test_a_flow_that_failed_while_it_was_held_still_is_not_broken_afterwards(engine: Engine, hold):
    supervision.settle(engine, "main", [FLOW])
    lease.acquire(engine, [lease.driver_lease("main")], Holder.here("main", 1), 3600)
    turn = order(engine).turn
    let_go = hold(engine)
    orders.fail(engine, [FLOW], INCURABLE, turn)
    let_go()
    # The control database was away, or the driver busy: it tells that late.
    orders.fail(engine, [FLOW], INCURABLE, turn)
    assert supervision.settle(engine, "main", [FLOW]).decisions[FLOW].state is State.STARTING
    orders.fail(engine, [FLOW], INCURABLE, order(engine).turn)
    assert supervision.settle(engine, "main", [FLOW]).decisions[FLOW].state is State.BROKEN


def test_a_restart_of_a_flow_that_is_held_still_starts_it_once_and_not_twice(engine: Engine):
    let_go = by_refresh(engine)
    before = order(engine).turn
    ask(engine, Action.RESTART)
    let_go()
    assert order(engine).turn == before + 1


def test_a_flow_that_no_job_holds_is_obeyed_at_once(engine: Engine):
    by_backfill(engine)
    assert ask(engine, Action.STOP, OTHER) == "stops after the batch in hand"
    assert order(engine, OTHER).state == "stopped"


def test_a_reset_of_a_flow_that_is_held_still_waits_for_its_next_start(engine: Engine):
    let_go = by_refresh(engine)
    assert "at its next start" in ask(engine, Action.RESET_CHECKPOINT)
    assert order(engine).state == "stopped"
    let_go()
    assert resets.pending(engine, FLOW) is not None


def test_the_audit_keeps_what_was_asked_while_a_flow_was_held_still(engine: Engine):
    one = backfill(engine)
    ask(engine, Action.STOP)
    with database.transaction(engine) as connection:
        last = connection.execute(select(audits).order_by(audits.c.number.desc()).limit(1)).one()
    said = f"backfill {one.number} still holds it, and it is stopped when that is done"
    assert (last.who, last.action, last.target, last.result) == ("ada", "stop", FLOW, said)
