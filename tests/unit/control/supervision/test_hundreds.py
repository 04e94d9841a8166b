"""The supervisor and the drivers send no more statements for hundreds of flows than for a few."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, event, update

from include.control import commands, schedule
from include.control.commands import Action, Command
from include.control.flows import incidents, orders
from include.control.flows.decide import State
from include.control.flows.observed_flow import Failure
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import runs, ticks
from include.control.supervision import supervision

FEW = [f"silver.t{number:03}" for number in range(3)]
MANY = [f"silver.t{number:03}" for number in range(60)]
HOUR_SECONDS = 3_600.0
INCURABLE = Failure("column 'bpm' is gone", "DeclarationError", needs_person=True)


@contextmanager
def counting(engine: Engine) -> Iterator[list[int]]:
    """The number of statements of each transaction inside the block."""
    counts = [0]

    def on_statement(*_) -> None:
        counts[-1] += 1

    def on_commit(*_) -> None:
        counts.append(0)

    # At its first connection, SQLAlchemy sends statements of its own.
    with database.transaction(engine):
        pass
    event.listen(engine, "before_cursor_execute", on_statement)
    event.listen(engine, "commit", on_commit)
    yield counts
    event.remove(engine, "before_cursor_execute", on_statement)
    event.remove(engine, "commit", on_commit)


def statements(engine: Engine, do: Callable[[], object]) -> int:
    """The number of statements of all transactions of `do`."""
    with counting(engine) as counts:
        do()
    assert sum(counts)
    return sum(counts)


def work(engine: Engine, driver: Holder, flows: list[str]) -> None:
    """Lets a driver run these flows, for an hour by now."""
    lease.acquire(engine, [lease.driver_lease("main"), *flows], driver, HOUR_SECONDS)
    orders.report_progress(engine, flows)
    with database.transaction(engine) as connection:
        connection.execute(update(runs).values(intended_at=database.now(connection) - HOUR_SECONDS))


def next_hour(cron: str, after: float) -> float:
    return after // HOUR_SECONDS * HOUR_SECONDS + HOUR_SECONDS


@pytest.mark.parametrize(
    "do",
    [
        lambda engine, flows: orders.read(engine, "main", flows),
        lambda engine, flows: orders.report_progress(engine, flows),
        lambda engine, flows: supervision.settle(engine, "main", flows),
        lambda engine, flows: supervision.preview(engine, "main", flows),
    ],
    ids=["read", "show signs", "settle", "show"],
)
def test_a_look_at_many_flows_asks_no_more_than_one_at_few(engine, holder, do):
    work(engine, holder("main"), MANY)
    assert statements(engine, lambda: do(engine, MANY)) == statements(engine, lambda: do(engine, FEW))


def test_alarms_that_last_cost_nothing_and_begin_and_end_all_the_same(engine, holder):
    work(engine, holder("main"), MANY)
    orders.fail(engine, MANY, INCURABLE)
    decisions = supervision.settle(engine, "main", MANY).decisions
    assert {decision.state for decision in decisions.values()} == {State.BROKEN}
    assert len(incidents.unsent(engine)) == len(MANY)
    statements_of_many = statements(engine, lambda: supervision.settle(engine, "main", MANY))
    assert statements_of_many == statements(engine, lambda: supervision.settle(engine, "main", FEW))
    commands.execute(engine, Command(Action.STOP, tuple(MANY), "ada", "a test"))
    supervision.settle(engine, "main", MANY)
    assert all(incident.is_over for incident in incidents.unsent(engine))


def test_of_hundreds_of_flows_that_are_due_at_once_each_is_a_short_transaction(engine):
    schedules = dict.fromkeys(MANY, "0 * * * *")
    schedule.follow(engine, schedules, next_hour)
    with database.transaction(engine) as connection:
        connection.execute(update(ticks).values(at=ticks.c.at - HOUR_SECONDS))
    with counting(engine) as counts:
        assert len(schedule.follow(engine, schedules, next_hour)) == len(MANY)
    assert max(counts) < 30
