"""Commands to a flow that a job has stopped take effect when the last job ends, and no failure outlives that."""

from functools import partial

import pytest
from sqlalchemy import Engine, select, update

from include.control import commands, schedule
from include.control.commands import Action, Command
from include.control.flows import orders, resets
from include.control.flows.decide import State
from include.control.flows.observed_flow import Failure
from include.control.jobs import backfills, rewinds, store
from include.control.jobs.backfills import Backfill
from include.control.jobs.rewinds import RestorePoint
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import audits, desired, ticks
from include.control.supervision import supervision
from include.project.ranges import Slice

FLOW, OTHER = "silver.held", "silver.other"
TABLE, SOURCE = "silver.held", "bronze.above"
INCURABLE = Failure("column 'bpm' is gone", "DeclarationError", needs_person=True)


def ask(engine: Engine, action: Action, flow: str = FLOW) -> str:
    return commands.execute(engine, Command(action, (flow,), "ada", "a test"))[0].removeprefix(f"{flow}: ")


def order(engine: Engine, flow: str = FLOW) -> orders.Order:
    return orders.read(engine, "main", [flow]).of[flow]


def want(engine: Engine, state: str) -> None:
    with database.transaction(engine) as connection:
        orders.lock(connection, [FLOW])
        orders.set_wanted(connection, FLOW, state, "a test")


def refresh(engine: Engine) -> Backfill:
    """A full refresh of the flow's table that has stopped the flow."""
    return begin_backfill(engine, TABLE)


def backfill(engine: Engine) -> Backfill:
    """A backfill of the flow's source that has stopped the flow."""
    return begin_backfill(engine, SOURCE)


def begin_backfill(engine: Engine, table: str) -> Backfill:
    job = backfills.begin(engine, table, Slice(), "bob")
    backfills.stop_readers(engine, job, [FLOW])
    return job


def by_backfill(engine: Engine):
    return partial(backfills.finish, engine, backfill(engine), 7, (1, 1), [], {})


def by_refresh(engine: Engine):
    return partial(store.record_failure, engine, refresh(engine), "it cannot be made", resumes_flows=True)


def by_rewind(engine: Engine):
    cut = {TABLE: RestorePoint(1, None, {FLOW: 1}, 7.0)}
    rewind = rewinds.plan(engine, TABLE, "2026-03-01", cut, [], "bob", "a bug")
    rewinds.stop(engine, rewind)
    return partial(rewinds.finish, engine, rewind, "done")


JOBS = [by_backfill, by_refresh, by_rewind]

# (action, wanted state before the job): wanted state after the job, and a part of the answer.
ANSWERS = {
    (Action.STOP, "running"): ("stopped", "it is stopped"),
    (Action.STOP, "draining"): ("stopped", "it is stopped"),
    (Action.STOP, "stopped"): ("stopped", "it is stopped"),
    (Action.START, "running"): ("running", "it is running"),
    (Action.START, "stopped"): ("running", "it is running"),
    (Action.RESTART, "running"): ("running", "it restarts"),
    (Action.RESTART, "draining"): ("draining", "it restarts"),
    (Action.RESTART, "stopped"): ("stopped", "nothing done"),
    (Action.DRAIN, "running"): ("draining", "it is draining"),
    (Action.DRAIN, "stopped"): ("stopped", "nothing done"),
    (Action.CATCH_UP, "stopped"): ("draining", "it is draining"),
    (Action.CATCH_UP, "running"): ("running", "nothing done"),
    (Action.RELEASE, "stopped"): ("stopped", "nothing done"),
}


@pytest.mark.parametrize("hold", JOBS)
@pytest.mark.parametrize(("action", "before"), ANSWERS)
def test_what_a_person_asks_of_a_flow_that_is_held_still_happens_when_it_is_let_go(engine, hold, action, before):
    after, answer = ANSWERS[action, before]
    want(engine, before)
    end_job = hold(engine)
    for _ in range(2):
        reply = ask(engine, action)
        assert answer in reply and "still holds it" in reply
        assert order(engine).state == "stopped", "it was woken while it was held still"
    end_job()
    assert order(engine).state == after
    assert ask(engine, Action.START) == "is started"


@pytest.mark.parametrize("turns", [(0, 1), (1, 0)])
def test_of_two_unfinished_jobs_that_hold_one_flow_the_last_to_end_lets_it_go_on(engine: Engine, turns):
    ends = [by_refresh(engine), by_backfill(engine)]
    assert "still hold it" in ask(engine, Action.DRAIN)
    ends[turns[0]]()
    assert order(engine).state == "stopped", "the other job is still at work"
    with database.reading(engine) as connection:
        [*_, last] = connection.execute(select(audits).where(audits.c.target == FLOW).order_by(audits.c.number)).all()
    assert last.action == "start"
    ends[turns[1]]()
    assert order(engine).state == "draining"


def test_the_second_job_remembers_what_was_wanted_before_the_first(engine: Engine):
    want(engine, "draining")
    first, second = by_refresh(engine), by_backfill(engine)
    first()
    second()
    assert order(engine).state == "draining"


def test_a_retry_stops_a_flow_again_that_somebody_woke(engine: Engine):
    job = backfill(engine)
    with database.transaction(engine) as connection:
        connection.execute(update(desired).values(state="draining", reason="by an earlier build"))
    backfills.stop_readers(engine, job, [FLOW])
    assert order(engine).state == "stopped"
    store.record_failure(engine, job, "it cannot be made", resumes_flows=True)
    assert order(engine).state == "draining"


@pytest.mark.parametrize("hold", JOBS)
def test_a_schedule_never_wakes_a_flow_that_is_held_still(engine: Engine, hold):
    def follow(cron: str | None = "* * * * *") -> dict[str, str]:
        return schedule.follow(engine, {FLOW: cron}, lambda _cron, at: at + 60)

    follow()
    end_job = hold(engine)
    with database.transaction(engine) as connection:
        connection.execute(update(ticks).values(at=ticks.c.at - 3600))
    assert (follow(), follow(None)) == ({}, {})
    assert order(engine).state == "stopped"
    end_job()
    assert follow() == {FLOW: "reads what its source holds now, then stops"}


@pytest.mark.parametrize("hold", JOBS)
def test_a_stop_keeps_the_schedule_from_starting_a_flow_that_is_held_still(engine: Engine, hold):
    schedule.follow(engine, {FLOW: "* * * * *"}, lambda _cron, at: at + 60)
    end_job = hold(engine)
    ask(engine, Action.STOP)
    end_job()
    assert schedule.follow(engine, {FLOW: "* * * * *"}, lambda _cron, at: at) == {}
    assert order(engine).state == "stopped"


@pytest.mark.parametrize("hold", JOBS)
def test_a_flow_that_failed_while_it_was_held_still_is_not_broken_afterwards(engine: Engine, hold):
    supervision.settle(engine, "main", [FLOW])
    lease.acquire(engine, [lease.driver_lease("main")], Holder.here("main", 1), 3600)
    turn = order(engine).turn
    end_job = hold(engine)
    orders.fail(engine, [FLOW], INCURABLE, turn)
    end_job()
    # A driver may report a failure late, as after an outage of the control database.
    orders.fail(engine, [FLOW], INCURABLE, turn)
    assert supervision.settle(engine, "main", [FLOW]).decisions[FLOW].state is State.STARTING
    orders.fail(engine, [FLOW], INCURABLE, order(engine).turn)
    assert supervision.settle(engine, "main", [FLOW]).decisions[FLOW].state is State.BROKEN


def test_a_restart_of_a_flow_that_is_held_still_starts_it_once_and_not_twice(engine: Engine):
    end_job = by_refresh(engine)
    turn_before = order(engine).turn
    ask(engine, Action.RESTART)
    end_job()
    assert order(engine).turn == turn_before + 1


def test_a_flow_that_no_job_holds_is_obeyed_at_once(engine: Engine):
    by_backfill(engine)
    assert ask(engine, Action.STOP, OTHER) == "stops after the current batch"
    assert order(engine, OTHER).state == "stopped"


def test_a_reset_of_a_flow_that_is_held_still_waits_for_its_next_start(engine: Engine):
    end_job = by_refresh(engine)
    assert "at its next start" in ask(engine, Action.RESET_CHECKPOINT)
    assert order(engine).state == "stopped"
    end_job()
    assert resets.pending(engine, FLOW) is not None


def test_the_audit_keeps_what_was_asked_while_a_flow_was_held_still(engine: Engine):
    job = backfill(engine)
    ask(engine, Action.STOP)
    with database.transaction(engine) as connection:
        audit = connection.execute(select(audits).order_by(audits.c.number.desc()).limit(1)).one()
    result = f"backfill {job.number} still holds it, and it is stopped when that is done"
    assert (audit.who, audit.action, audit.target, audit.result) == ("ada", "stop", FLOW, result)
