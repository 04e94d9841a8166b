"""After the clock is set back by a day, no restart is delayed, no silence is hidden, and nobody waits."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, update

from include.control import commands, schedule
from include.control.commands import Action, Command
from include.control.flows import orders
from include.control.flows.decide import FORCE_SECONDS, HEALTHY_SECONDS, STUCK_SECONDS, State
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import audits, backlogs, drivers, pulses, runs, shutdowns, ticks
from include.control.supervision import lag_history, shutdown, supervision, supervisor_presence
from include.control.supervision.supervision import Settlement

FLOW = "silver.readings"
DAY_SECONDS = 86_400
# The expiry of leases is missing, because their holders also keep deadlines of their own.
TIME_COLUMNS = (
    *(runs.c.intended_at, runs.c.sign_at, drivers.c.intended_at, drivers.c.ends_at),
    *(pulses.c.at, shutdowns.c.began_at, ticks.c.at, backlogs.c.at, audits.c.at),
)


def put_clock_back(engine: Engine, seconds: float = DAY_SECONDS) -> None:
    """Makes all stored times later by these seconds. Below 0, time passes."""
    with database.transaction(engine) as connection:
        for column in TIME_COLUMNS:
            connection.execute(update(column.table).values({column: column + seconds}))


def settle(engine: Engine, dead: str | None = None) -> Settlement:
    return supervision.settle(engine, "main", [FLOW], dead)


def state(settlement: Settlement) -> State:
    return settlement.decisions[FLOW].state


@pytest.fixture
def at_work(engine: Engine, holder: Callable[[], Holder]) -> Holder:
    """A driver whose flow has been healthy for a while."""
    driver = holder()
    supervision.record_launch(engine, "main", driver.python.to_json(), settle(engine).launch_since)
    orders.begin(engine, [FLOW], by_hand=False)
    lease.acquire(engine, [lease.driver_lease("main"), FLOW], driver, 3600)
    put_clock_back(engine, -HEALTHY_SECONDS - 1)
    orders.report_progress(engine, [FLOW])
    assert state(settle(engine)) is State.HEALTHY
    return driver


def ask(engine: Engine, action: Action, driver: str | None = None) -> str:
    [result] = commands.execute(engine, Command(action, (FLOW,), "ann", "a test", driver))
    return result


def test_a_flow_that_waits_for_its_next_start_is_started_at_once(engine: Engine):
    supervision.record_launch(engine, "main", "first", settle(engine).launch_since)
    assert settle(engine, dead="first").launch_since is None
    put_clock_back(engine)
    assert settle(engine, dead="first").launch_since is not None


def test_a_launch_that_nobody_knows_of_is_made_up_for(engine: Engine):
    settle(engine)
    put_clock_back(engine)
    assert settle(engine).launch_since is not None


def test_a_silence_counts_from_when_the_clock_was_put_back(engine: Engine, at_work: Holder):
    put_clock_back(engine)
    assert state(settle(engine)) is State.HEALTHY
    put_clock_back(engine, -STUCK_SECONDS - 1)
    assert state(settle(engine)) is State.STUCK


def test_a_driver_that_does_not_restart_is_ended_by_force(engine: Engine, at_work: Holder):
    ask(engine, Action.RESTART, driver="main")
    put_clock_back(engine)
    assert not settle(engine).kill
    put_clock_back(engine, -FORCE_SECONDS - 1)
    assert settle(engine).kill


def test_a_restart_that_is_asked_for_afterwards_counts(engine: Engine, at_work: Holder):
    put_clock_back(engine)
    ask(engine, Action.RESTART, driver="main")
    decision = settle(engine).decisions[FLOW]
    assert decision.reason.startswith("its driver was asked to restart")


def test_a_restart_that_was_asked_for_before_is_no_reason_to_do_nothing(engine: Engine, at_work: Holder):
    assert ask(engine, Action.RESTART) == f"{FLOW}: restarts after the current batch"
    put_clock_back(engine)
    assert ask(engine, Action.RESTART) == f"{FLOW}: restarts after the current batch"


def test_a_supervisor_that_was_at_work_before_is_not_taken_for_one_that_is(engine: Engine):
    supervision.heartbeat(engine)
    assert supervisor_presence.read(engine).absence is None
    put_clock_back(engine)
    assert supervisor_presence.read(engine).worked_seconds_ago is None
    assert "has not been at work yet" in supervisor_presence.read(engine).absence


def test_a_clock_that_is_corrected_by_a_second_is_nobodys_concern(engine: Engine, at_work: Holder):
    supervision.heartbeat(engine)
    put_clock_back(engine, 1)
    assert state(settle(engine)) is State.HEALTHY
    assert supervisor_presence.read(engine).worked_seconds_ago == 0
    assert supervisor_presence.read(engine).absence is None


def test_a_platform_that_was_stopped_before_can_be_started(engine: Engine):
    shutdown.begin(engine, [])
    put_clock_back(engine)
    assert "stopped it some time ago" in supervisor_presence.read(engine).absence
    shutdown.end(engine)
    assert supervisor_presence.read(engine).shutdown is None


def test_a_schedule_that_was_followed_before_is_due_once_more_and_then_as_ever(engine: Engine):
    def follow() -> dict[str, str]:
        return schedule.follow(engine, {FLOW: "hourly"}, lambda _, after: after + 3600)

    follow()
    put_clock_back(engine)
    assert follow() == {FLOW: "reads what its source holds now, then stops"}
    orders.end_drain(engine, FLOW)
    assert follow() == {}


def test_a_backlog_of_before_is_no_part_of_a_trend(engine: Engine):
    with database.transaction(engine) as connection:
        now, samples = database.now(connection), range(lag_history.SAMPLES)
        rows = [{"flow": FLOW, "at": now - lag_history.SAMPLES + sample, "behind": sample} for sample in samples]
        connection.execute(backlogs.insert(), rows)
    assert lag_history.samples(engine) == {FLOW: list(samples)}
    put_clock_back(engine)
    assert lag_history.samples(engine) == {}
    lag_history.remember(engine, {FLOW: 0})
    assert lag_history.samples(engine) == {FLOW: [0]}
    put_clock_back(engine, -lag_history.TREND_SECONDS - 1)
    assert lag_history.samples(engine) == {}, "no supervisor is at work"
