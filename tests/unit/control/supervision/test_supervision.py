"""What the supervisor stores: a start outlives a crash and is never doubled, and no incident is notified twice."""

import os
import re
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest
from sqlalchemy import Engine, Table, select, text, update

from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import incidents, orders, resets
from include.control.flows.decide import FORCE_SECONDS, HEALTHY_SECONDS, SLOW_START_SECONDS, START_SECONDS, State
from include.control.flows.observed_flow import Failure
from include.control.jobs import backfills, held_flows, rewinds, stale_rows, store
from include.control.jobs.backfills import Backfill
from include.control.jobs.rewinds import RestorePoint
from include.control.leases import lease, lock
from include.control.leases.lease import Lease
from include.control.leases.lock import LockRequest
from include.control.leases.process import Holder, Process
from include.control.store import database, job_id, schema
from include.control.store.job_id import JobId, JobKind
from include.control.store.schema import audits, drivers, leases, runs, shutdowns
from include.control.supervision import shutdown, supervision, supervisor_presence
from include.control.supervision.supervision import Settlement, SourceHealth
from include.errors import FlowBroken
from include.project.ranges import Slice
from tests.support.waiting import wait_until

A, B = FLOWS = ["bronze.a", "silver.a"]
CURABLE = Failure("no broker answers", "Unreachable", needs_person=False)
INCURABLE = Failure("column 'bpm' is gone", "DeclarationError", needs_person=True)
TIME_COLUMNS = (runs.c.intended_at, runs.c.sign_at, drivers.c.intended_at, drivers.c.ends_at, audits.c.at)


def settle(engine: Engine, dead: str | None = None, **health: str) -> Settlement:
    """`health` is that of the source of the first flow."""
    return supervision.settle(engine, "main", FLOWS, dead, {A: SourceHealth(**health)})


def states(settlement: Settlement) -> list[State]:
    return [settlement.decisions[flow].state for flow in FLOWS]


def launches(settlement: Settlement) -> bool:
    return settlement.launch_since is not None


def launched(engine: Engine, settlement: Settlement, handle: str) -> None:
    supervision.record_launch(engine, "main", handle, settlement.launch_since)


def rows(engine: Engine, table: Table) -> list:
    with database.transaction(engine) as connection:
        return connection.execute(select(table).order_by(*table.primary_key)).all()


def run(engine: Engine, flow: str = A):
    return next(row for row in rows(engine, runs) if row.flow == flow)


def pass_time(engine: Engine, seconds: float) -> None:
    """Moves all times but those of the leases this many seconds back."""
    with database.transaction(engine) as connection:
        for column in TIME_COLUMNS:
            connection.execute(update(column.table).values({column: column - seconds}))


def come_up(engine: Engine, driver: Holder, by_hand: bool = False) -> None:
    """Acts as a driver that was just started."""
    orders.begin(engine, FLOWS, by_hand)
    lease.acquire(engine, [lease.driver_lease("main"), *FLOWS], driver, 3600)


def healthy_driver(engine: Engine, driver: Holder) -> Holder:
    """Starts a driver whose flows report progress."""
    launched(engine, settle(engine), driver.python.to_json())
    come_up(engine, driver)
    pass_time(engine, HEALTHY_SECONDS + 1)
    orders.report_progress(engine, FLOWS)
    assert states(settle(engine)) == [State.HEALTHY] * 2
    return driver


def give_back(engine: Engine, *names: str) -> None:
    with database.transaction(engine) as connection:
        held_leases = [Lease(name, lease.epoch(connection, name)) for name in names]
    lease.release(engine, held_leases)


def fail(engine: Engine, flow: str, failure: Failure) -> None:
    """Fails the flow in a driver that lives on."""
    orders.fail(engine, [flow], failure)
    give_back(engine, flow)


def ask(engine: Engine, action: Action, *flows: str, driver: str | None = None) -> str:
    [result] = commands.execute(engine, Command(action, tuple(FLOWS) if driver else flows, "ann", "a test", driver))
    return result


def notify(engine: Engine) -> list[str]:
    """Marks all messages as sent, and returns the states of those about the first flow that are not over."""
    unsent = incidents.unsent(engine)
    for notice in unsent:
        incidents.mark_sent(engine, notice)
    return [notice.first.state for notice in unsent if A in notice.subjects and not notice.is_over]


def tell(engine: Engine) -> list[incidents.Notice]:
    """Marks all messages as sent, and returns them."""
    unsent = incidents.unsent(engine)
    for notice in unsent:
        incidents.mark_sent(engine, notice)
    return unsent


def open_incidents(engine: Engine) -> list[str]:
    return [row.state for row in rows(engine, schema.incidents) if row.target == A and row.ended_at is None]


def hold_again(engine: Engine, driver: Holder, flow: str = A) -> None:
    """Takes the lease of the flow again, as its driver does at a start."""
    lease.acquire(engine, [flow], driver, 3600)


def test_the_intent_to_start_is_kept_before_anything_is_launched(engine):
    settlement = settle(engine)
    assert launches(settlement)
    assert not settlement.kill
    assert states(settlement) == [State.STARTING] * 2
    [driver] = rows(engine, drivers)
    assert (driver.handle, driver.intended_at is None) == (None, False)
    assert [row.attempts for row in rows(engine, runs)] == [1, 1]


def test_a_supervisor_that_died_between_intent_and_launch_costs_a_timeout_and_no_second_driver(engine):
    assert launches(settle(engine))
    assert [launches(settle(engine)) for _ in range(3)] == [False] * 3
    pass_time(engine, START_SECONDS - 10)
    assert states(settle(engine)) == [State.STARTING] * 2
    assert not launches(settle(engine))
    pass_time(engine, 20)
    assert launches(settle(engine))
    assert [row.attempts for row in rows(engine, runs)] == [2, 2]


def test_a_launch_that_fails_each_time_is_tried_ever_more_slowly_and_told_once(engine):
    attempts = []
    for _ in range(14):
        settle(engine)
        attempts.append(run(engine).attempts)
        pass_time(engine, 60)
    assert attempts == [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 4, 5]
    assert notify(engine) == ["BACKING OFF"]


def test_a_launch_that_took_so_long_that_it_was_given_up_is_not_taken_for_the_next(engine):
    slow_settlement = settle(engine)
    pass_time(engine, START_SECONDS + 1)
    launched(engine, settle(engine), "process 8")
    launched(engine, slow_settlement, "process 7")
    assert supervision.handles(engine).get("main") == "process 8"


def test_a_flow_that_moves_starts_its_new_driver_and_runs_in_the_old_one_until_that_is_up(engine, holder):
    healthy_driver(engine, holder("main"))
    settlement = supervision.settle(engine, "heavy", [B])
    assert launches(settlement)
    assert settlement.decisions[B].state is State.HEALTHY
    assert settlement.decisions[B].reason == "at work, in driver 'main' until driver 'heavy' takes it over"
    # Its start is not counted, as the flow goes on.
    assert run(engine, B).attempts == 0
    assert not launches(supervision.settle(engine, "heavy", [B]))


def test_no_driver_is_started_for_a_flow_that_is_to_stop_or_that_somebody_runs_by_hand(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    ask(engine, Action.STOP, B)
    assert not launches(supervision.settle(engine, "heavy", [B]))
    ask(engine, Action.START, B)
    give_back(engine, lease.driver_lease("main"))
    assert B in lease_holders(engine, driver)
    assert not launches(supervision.settle(engine, "heavy", [B]))


def lease_holders(engine: Engine, driver: Holder) -> list[str]:
    with database.reading(engine) as connection:
        return [flow for flow, holder in lease.alive(connection).items() if holder == driver]


def test_of_many_supervisors_at_one_moment_one_starts_the_driver(engine):
    barrier = threading.Barrier(4)

    def supervisor(_: int) -> bool:
        barrier.wait(10)
        return launches(settle(engine))

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(supervisor, range(4))) == [False, False, False, True]
    assert [row.attempts for row in rows(engine, runs)] == [1, 1]


def test_a_launch_that_lives_is_waited_for_and_then_called_stuck_and_never_doubled(engine):
    launched(engine, settle(engine), "process 7")
    assert states(settle(engine)) == [State.STARTING] * 2
    pass_time(engine, 10_000)
    settlement = settle(engine, dead="process 6")
    assert (states(settlement), launches(settlement)) == ([State.STUCK] * 2, False)


def test_a_launch_that_died_before_it_had_its_leases_backs_off_and_comes_again(engine):
    launched(engine, settle(engine), "process 7")
    assert supervision.handles(engine).get("main") == "process 7"
    settlement = settle(engine, dead="process 7")
    assert (states(settlement), launches(settlement)) == ([State.BACKING_OFF] * 2, False)
    orders.fail(engine, FLOWS, CURABLE)
    assert settle(engine, dead="process 7").decisions[A].reason.startswith("no broker answers (start 2 follows in ")
    pass_time(engine, 31)
    assert launches(settle(engine, dead="process 7"))
    assert supervision.handles(engine).get("main") is None
    assert (run(engine).attempts, run(engine).failure) == (2, None)


def test_a_driver_that_was_killed_is_started_at_once_though_its_leases_still_run(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    driver.python.kill()
    settlement = settle(engine)
    assert (states(settlement), launches(settlement)) == ([State.BACKING_OFF] * 2, True)


def test_a_driver_that_was_killed_is_one_message_for_all_flows_and_one_when_they_are_well_again(engine, holder):
    healthy_driver(engine, holder("main")).python.kill()
    told = []
    launched(engine, settle(engine), holder("main").python.to_json())
    told += tell(engine)
    come_up(engine, holder("main"))
    for _ in range(3):
        orders.report_progress(engine, FLOWS)
        settle(engine)
        told += tell(engine)
        pass_time(engine, HEALTHY_SECONDS)
    assert [(notice.title, notice.is_over) for notice in told] == [
        ("BACKING OFF driver main (2 flows)", False),
        ("BACKING OFF driver main (2 flows)", True),
    ]


def test_a_flow_whose_lease_a_rewind_holds_is_stopped_and_has_no_alarm(engine, holder):
    healthy_driver(engine, holder("main"))
    with database.transaction(engine) as connection:
        number = store.insert_job(connection, JobKind.REWIND, A, "ann")
        held_flows.stop(connection, JobId(JobKind.REWIND, number), [A], "ann", "to yesterday")
    lease.acquire(engine, [f"rewind {number}"], holder(), 3600)
    pass_time(engine, 10 * SLOW_START_SECONDS)
    orders.report_progress(engine, [B])
    assert states(settle(engine)) == [State.STOPPED, State.HEALTHY]
    assert tell(engine) == []


def test_a_driver_whose_leases_ran_out_while_it_slept_is_started_anew(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    for process in (driver.python, driver.jvm):
        os.kill(process.pid, signal.SIGSTOP)
    with database.transaction(engine) as connection:
        connection.execute(update(leases).values(expires_at=database.now(connection) - 1))
    assert launches(settle(engine))
    assert driver.python.is_alive
    assert not launches(settle(engine))


def test_a_driver_that_ended_and_gave_everything_back_is_started_anew(engine, holder):
    healthy_driver(engine, holder("main"))
    give_back(engine, lease.driver_lease("main"), *FLOWS)
    assert launches(settle(engine))


def test_a_healthy_spell_makes_the_next_failure_the_first(engine, holder):
    settle(engine)
    orders.fail(engine, FLOWS, CURABLE)
    pass_time(engine, START_SECONDS)
    assert launches(settle(engine))
    come_up(engine, holder("main"))
    orders.report_progress(engine, FLOWS)
    settle(engine)
    assert run(engine).attempts == 2, "it works, but has yet to show that it lasts"
    pass_time(engine, HEALTHY_SECONDS + 1)
    orders.report_progress(engine, FLOWS)
    settle(engine)
    assert run(engine).attempts == 0


def test_a_failed_flow_is_started_again_in_the_driver_that_lives(engine, holder):
    healthy_driver(engine, holder("main"))
    fail(engine, B, CURABLE)
    assert orders.read(engine, "main", FLOWS).failed == {B}
    settlement = settle(engine)
    assert (states(settlement), launches(settlement)) == ([State.HEALTHY, State.BACKING_OFF], False)
    assert orders.read(engine, "main", FLOWS).failed == frozenset()
    fail(engine, B, CURABLE)
    assert states(settle(engine)) == [State.HEALTHY, State.BACKING_OFF]
    assert orders.read(engine, "main", FLOWS).failed == {B}
    assert (run(engine, A).attempts, run(engine, B).attempts) == (0, 1)


def test_a_new_driver_tries_what_backs_off_too_and_leaves_alone_what_is_broken_or_stopped(engine, holder):
    flows = ["broken", "dead", "failed", "stopped"]
    supervision.settle(engine, "main", flows)
    for flow, failure in {"broken": INCURABLE, "failed": CURABLE, "stopped": CURABLE}.items():
        orders.fail(engine, [flow], failure)
    ask(engine, Action.STOP, "stopped")
    with database.transaction(engine) as connection:
        connection.execute(update(drivers).values(handle="process 7"))
        connection.execute(update(runs).where(runs.c.flow == "dead").values(attempts=0))
    settlement = supervision.settle(engine, "main", flows, dead_handle="process 7")
    assert launches(settlement)
    states_by_flow = {
        row.flow: (settlement.decisions[row.flow].state, row.attempts, row.failure) for row in rows(engine, runs)
    }
    assert states_by_flow == {
        "broken": (State.BROKEN, 1, INCURABLE.sentence),
        "dead": (State.STARTING, 1, None),
        "failed": (State.BACKING_OFF, 2, None),
        "stopped": (State.STOPPED, 1, CURABLE.sentence),
    }


def test_what_is_not_wanted_or_broken_starts_no_driver(engine):
    ask(engine, Action.STOP, A)
    orders.fail(engine, [B], INCURABLE)
    settlement = settle(engine)
    assert (states(settlement), launches(settlement)) == ([State.STOPPED, State.BROKEN], False)


def test_a_driver_that_was_asked_to_restart_has_its_time_then_is_ended_by_force_and_started_again(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    ask(engine, Action.RESTART, driver="main")
    pass_time(engine, FORCE_SECONDS - 5)
    settlement = settle(engine)
    assert (launches(settlement), settlement.kill, states(settlement)) == (False, False, [State.STARTING] * 2)
    pass_time(engine, 10)
    settlement = settle(engine)
    assert (launches(settlement), settlement.kill, states(settlement)) == (False, True, [State.STARTING] * 2)
    assert settlement.holder == driver
    driver.fence()
    settlement = settle(engine)
    assert (launches(settlement), settlement.kill, notify(engine)) == (True, False, [])
    come_up(engine, holder("main"))
    pass_time(engine, 10 * FORCE_SECONDS)
    assert not settle(engine).kill


def test_a_driver_that_even_force_does_not_end_is_told(engine, holder):
    healthy_driver(engine, holder("main"))
    ask(engine, Action.STOP, B)
    give_back(engine, B)
    ask(engine, Action.RESTART, driver="main")
    pass_time(engine, 2 * FORCE_SECONDS + 1)
    settlement = settle(engine)
    assert (settlement.kill, states(settlement)) == (True, [State.STUCK, State.STOPPED])
    assert notify(engine) == ["STUCK"]


def is_to_end(engine: Engine) -> bool:
    """Whether the newest driver reads that it has to end."""
    with database.transaction(engine) as connection:
        epoch = lease.epoch(connection, lease.driver_lease("main"))
    return epoch <= orders.read(engine, "main", FLOWS).ends_epoch


@pytest.mark.parametrize("was_there_before", [False, True])
def test_a_restart_while_no_driver_lives_is_the_next_start(engine, holder, was_there_before: bool):
    if was_there_before:
        healthy_driver(engine, holder("main")).fence()
    ask(engine, Action.RESTART, driver="main")
    pass_time(engine, 10 * FORCE_SECONDS)
    settlement = settle(engine)
    assert (launches(settlement), settlement.kill, states(settlement)) == (True, False, [State.STARTING] * 2)
    come_up(engine, holder("main"))
    assert not is_to_end(engine)


def test_a_driver_that_is_asked_to_restart_while_it_hangs_on_its_way_is_ended_and_comes_again(engine):
    launched(engine, settle(engine), "process 7")
    ask(engine, Action.RESTART, driver="main")
    settlement = settle(engine)
    assert (launches(settlement), settlement.kill) == (False, False)
    pass_time(engine, FORCE_SECONDS + 1)
    settlement = settle(engine)
    assert (launches(settlement), settlement.kill, settlement.holder) == (False, True, None)
    settlement = settle(engine, dead="process 7")
    assert (launches(settlement), settlement.kill) == (True, False)


@pytest.mark.parametrize("has_said_why", [False, True])
def test_a_restart_after_the_restarted_driver_died_on_its_way_starts_it_at_once(engine, holder, has_said_why: bool):
    healthy_driver(engine, holder("main")).fence()
    ask(engine, Action.RESTART, driver="main")
    launched(engine, settle(engine), "process 8")
    if has_said_why:
        orders.fail(engine, FLOWS, CURABLE)
    assert states(settle(engine, dead="process 8")) == [State.BACKING_OFF] * 2
    pass_time(engine, commands.REPEAT_SECONDS + 1)
    with database.transaction(engine) as connection:
        connection.execute(update(runs).values(attempts=9))
    assert states(settle(engine, dead="process 8")) == [State.BACKING_OFF] * 2
    ask(engine, Action.RESTART, driver="main")
    assert launches(settle(engine, dead="process 8"))


def test_each_restart_ends_the_driver_of_its_time_and_no_later_one(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    for _ in range(2):
        assert not is_to_end(engine)
        ask(engine, Action.RESTART, driver="main")
        assert is_to_end(engine)
        driver.fence()
        assert launches(settle(engine))
        driver = holder("main")
        come_up(engine, driver)
        pass_time(engine, commands.REPEAT_SECONDS + 1)
    assert not is_to_end(engine)


def test_a_run_by_hand_beside_the_driver_is_no_news_neither_while_it_lasts_nor_when_it_ends(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    ask(engine, Action.STOP, A)
    give_back(engine, A)
    ask(engine, Action.START, A)
    orders.begin(engine, [A], by_hand=True)
    hold_again(engine, holder("by hand"))
    assert states(settle(engine)) == [State.STARTING, State.HEALTHY]
    pass_time(engine, 10_000)
    orders.report_progress(engine, FLOWS)
    assert states(settle(engine)) == [State.HEALTHY] * 2
    give_back(engine, A)
    settlement = settle(engine)
    assert (launches(settlement), states(settlement)) == (False, [State.STARTING, State.HEALTHY])
    hold_again(engine, driver)
    assert states(settle(engine)) == [State.HEALTHY] * 2
    assert notify(engine) == []


def test_a_flow_that_is_reset_while_it_is_stopped_stays_so_and_is_reset_when_it_is_started(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    ask(engine, Action.STOP, A)
    give_back(engine, A)
    ask(engine, Action.RESET_CHECKPOINT, A)
    pass_time(engine, 10_000)
    orders.report_progress(engine, [B])
    assert states(settle(engine)) == [State.STOPPED, State.HEALTHY]
    ask(engine, Action.START, A)
    assert states(settle(engine)) == [State.STARTING, State.HEALTHY]
    hold_again(engine, driver)
    assert resets.pending(engine, A).who == "ann"
    assert notify(engine) == []


def test_drivers_are_settled_each_for_itself(engine):
    assert launches(settle(engine))
    assert launches(supervision.settle(engine, "other", ["gold.b"]))
    assert not launches(settle(engine))


def test_a_flow_that_falls_behind_or_whose_source_is_away_says_so(engine, holder):
    healthy_driver(engine, holder("main"))
    settlement = settle(engine, backlog="9 h behind, Kafka keeps 12 h")
    assert states(settlement) == [State.LAGGING, State.HEALTHY]
    assert settlement.decisions[A].reason == "9 h behind, Kafka keeps 12 h"
    assert states(settle(engine, waits_for="no broker answers")) == [State.WAITING, State.HEALTHY]


def test_an_incident_lasts_across_the_starts_in_between_and_ends_with_health(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    for seconds in (1, 1, 31, 1, 61):
        fail(engine, A, CURABLE)
        settle(engine)
        pass_time(engine, seconds)
        settle(engine)
    assert notify(engine) == ["BACKING OFF"]
    assert states(settle(engine))[0] is State.STARTING
    hold_again(engine, driver)
    orders.report_progress(engine, [A])
    settle(engine)
    assert open_incidents(engine) == ["BACKING OFF"], "it works, but has yet to show that it lasts"
    pass_time(engine, 10 * HEALTHY_SECONDS)
    orders.report_progress(engine, [A])
    settle(engine)
    assert open_incidents(engine) == []
    assert notify(engine) == []


def test_a_flow_that_turns_out_to_be_broken_is_new_news(engine, holder):
    healthy_driver(engine, holder("main"))
    fail(engine, A, CURABLE)
    settle(engine)
    fail(engine, A, CURABLE)
    settle(engine)
    assert notify(engine) == ["BACKING OFF"]
    orders.fail(engine, [A], INCURABLE)
    settle(engine)
    settle(engine)
    assert notify(engine) == ["BROKEN"]
    ask(engine, Action.STOP, A)
    settle(engine)
    assert open_incidents(engine) == []


def test_a_pulse_tells_how_long_ago_it_was(engine):
    assert supervisor_presence.read(engine).worked_seconds_ago is None
    supervision.heartbeat(engine)
    supervision.heartbeat(engine)
    assert 0 <= supervisor_presence.read(engine).worked_seconds_ago < 5


@pytest.mark.parametrize("signs", [False, True])
def test_a_flow_that_fails_70_seconds_after_each_start_backs_off_and_is_told(engine, holder, signs: bool):
    driver = healthy_driver(engine, holder("main"))
    fail(engine, A, CURABLE)
    for _ in range(5):
        settle(engine)
        hold_again(engine, driver)
        pass_time(engine, 65)
        orders.report_progress(engine, [A] if signs else [])
        settle(engine)
        pass_time(engine, 5)
        fail(engine, A, CURABLE)
        settle(engine)
    assert notify(engine) == ["BACKING OFF"]


def test_a_broker_that_stays_away_is_told_once_however_often_the_flow_is_tried(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    fail(engine, A, CURABLE)
    for _ in range(3):
        pass_time(engine, 1000)
        settle(engine)
        hold_again(engine, driver)
        settle(engine, waits_for="no broker answers")
        fail(engine, A, CURABLE)
        settle(engine)
    assert notify(engine) == ["BACKING OFF"]


def test_a_flow_that_comes_back_too_far_behind_is_new_news(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    for _ in range(2):
        fail(engine, A, CURABLE)
        settle(engine)
    assert notify(engine) == ["BACKING OFF"]
    pass_time(engine, 31)
    settle(engine)
    hold_again(engine, driver)
    pass_time(engine, 10 * HEALTHY_SECONDS)
    orders.report_progress(engine, FLOWS)
    settle(engine, backlog="9 h behind, Kafka keeps 12 h")
    assert notify(engine) == ["LAGGING"]


def test_a_flow_that_works_for_hours_behind_its_source_has_recovered(engine, holder):
    healthy_driver(engine, holder("main"))
    with database.transaction(engine) as connection:
        connection.execute(update(runs).values(attempts=5))
    pass_time(engine, 10_000)
    orders.report_progress(engine, FLOWS)
    settle(engine, backlog="9 h behind")
    assert run(engine).attempts == 0


def test_a_flow_that_breaks_anew_after_somebody_mended_it_is_new_news(engine, holder):
    healthy_driver(engine, holder("main"))
    fail(engine, A, INCURABLE)
    settle(engine)
    assert notify(engine) == ["BROKEN"]
    ask(engine, Action.RESTART, A)
    settle(engine)
    fail(engine, A, Failure("column 'kcal' is gone", "DeclarationError", needs_person=True))
    settle(engine)
    assert notify(engine) == ["BROKEN"]


def test_an_incident_is_over_only_when_the_flow_that_a_person_restarted_has_lasted(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    fail(engine, A, INCURABLE)
    settle(engine)
    tell(engine)
    ask(engine, Action.RESTART, A)
    settle(engine)
    hold_again(engine, driver)
    orders.report_progress(engine, FLOWS)
    assert states(settle(engine)) == [State.HEALTHY] * 2
    assert (open_incidents(engine), tell(engine)) == (["BROKEN"], [])
    pass_time(engine, HEALTHY_SECONDS + 1)
    orders.report_progress(engine, FLOWS)
    settle(engine)
    assert [(notice.title, notice.is_over) for notice in tell(engine)] == [(f"BROKEN {A}", True)]


def test_a_driver_that_dies_again_after_a_person_restarted_it_is_a_second_message(engine, holder):
    healthy_driver(engine, holder("main")).python.kill()
    second, third = holder("main"), holder("main")
    launched(engine, settle(engine), second.python.to_json())
    assert [notice.subjects for notice in tell(engine)] == [FLOWS]
    come_up(engine, second)
    ask(engine, Action.RESTART, driver="main")
    second.python.kill()
    launched(engine, settle(engine), third.python.to_json())
    come_up(engine, third)
    orders.report_progress(engine, FLOWS)
    settle(engine)
    assert tell(engine) == []
    third.python.kill()
    settle(engine)
    assert [(notice.subjects, notice.is_over) for notice in tell(engine)] == [(FLOWS, False)]


def test_a_restart_does_not_end_the_alarm_of_a_flow_that_runs_and_is_late(engine, holder):
    healthy_driver(engine, holder("main"))
    settle(engine, backlog="9 h behind")
    assert notify(engine) == ["LAGGING"]
    ask(engine, Action.RESTART, A)
    orders.report_progress(engine, FLOWS)
    settle(engine, backlog="9 h behind")
    assert (open_incidents(engine), tell(engine)) == (["LAGGING"], [])


def test_a_flow_that_a_live_driver_takes_up_after_days_is_not_stuck(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    ask(engine, Action.STOP, A)
    give_back(engine, A)
    pass_time(engine, 200_000)
    ask(engine, Action.START, A)
    hold_again(engine, driver)
    assert settle(engine).decisions[A].state in (State.STARTING, State.HEALTHY)


def test_a_driver_that_was_started_by_hand_after_days_is_not_stuck(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    driver.fence()
    pass_time(engine, 200_000)
    come_up(engine, holder("main"), by_hand=True)
    assert State.STUCK not in states(settle(engine))


def test_a_flow_that_hangs_after_it_was_started_by_hand_for_the_first_time_is_stuck(engine, holder):
    come_up(engine, holder("main"), by_hand=True)
    pass_time(engine, 10_000)
    assert states(settle(engine)) == [State.STUCK] * 2


def test_a_flow_that_somebody_ran_by_hand_is_not_stuck_when_that_run_ends(engine, holder):
    healthy_driver(engine, holder("main"))
    fail(engine, A, INCURABLE)
    pass_time(engine, 200_000)
    orders.begin(engine, [A], by_hand=True)
    assert settle(engine).decisions[A].state is not State.STUCK


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_driver_that_came_up_after_its_restart_was_asked_for_is_left_alone(engine, holder, by_hand: bool):
    if not by_hand:
        assert launches(settle(engine))
    ask(engine, Action.RESTART, driver="main")
    come_up(engine, holder("main"), by_hand)
    pass_time(engine, FORCE_SECONDS + 1)
    orders.report_progress(engine, FLOWS)
    assert not settle(engine).kill


def test_asking_again_does_not_give_a_hanging_driver_more_time(engine, holder):
    healthy_driver(engine, holder("main"))
    for _ in range(3):
        ask(engine, Action.RESTART, driver="main")
        pass_time(engine, FORCE_SECONDS - 20)
    assert settle(engine).kill


def test_a_failure_that_is_reported_while_the_supervisor_decides_is_not_lost(on_postgresql, holder):
    engine = on_postgresql
    healthy_driver(engine, holder("main"))
    give_back(engine, lease.driver_lease("main"), *FLOWS)
    with ThreadPoolExecutor(2) as pool:
        with database.transaction(engine) as connection:

            def wait_until_blocked(future: Future, count: int) -> None:
                blocked_query = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
                wait_until(lambda: future.done() or connection.execute(blocked_query).scalar_one() == count, 2)

            # The supervisor has read the first flow, and waits for the row of the second.
            connection.execute(update(runs).where(runs.c.flow == B).values(sign_at=None))
            settle_future = pool.submit(settle, engine)
            wait_until_blocked(settle_future, 1)
            fail_future = pool.submit(orders.fail, engine, [A], INCURABLE)
            wait_until_blocked(fail_future, 2)
        settle_future.result()
        fail_future.result()
    assert run(engine).failure == INCURABLE.sentence


def test_a_flow_whose_table_is_in_a_window_waits_and_is_not_sick(engine, holder):
    healthy_driver(engine, holder("main"))
    job = holder("maintain")
    lease.acquire(engine, [lease.window_lease(A)], job, 60)
    with database.transaction(engine) as connection:
        lock.enter(connection, LockRequest(lease.window_lease(A), A, alone=True))
    settlement = settle(engine)
    assert states(settlement) == [State.WAITING, State.HEALTHY]
    assert f"a window has {A} to itself for" in settlement.decisions[A].reason
    assert notify(engine) == []


def test_each_flow_of_a_table_waits_for_its_window(engine, holder):
    flows = [f"{A}.eu", f"{A}.us"]
    supervision.settle(engine, "main", flows)
    lease.acquire(engine, [lease.driver_lease("main"), *flows], holder("main"), 60)
    orders.report_progress(engine, flows)
    lease.acquire(engine, [lease.window_lease(A)], holder("maintain"), 60)
    with database.transaction(engine) as connection:
        lock.enter(connection, LockRequest(lease.window_lease(A), A, alone=True))
    decisions = supervision.settle(engine, "main", flows).decisions
    assert {decisions[flow].state for flow in flows} == {State.WAITING}


def stop_by_backfill(engine: Engine) -> tuple[str, Callable[[], None]]:
    """Returns the lease of the job, and a function that ends the job and lets the flow go on."""
    backfill = backfills.begin(engine, "silver.a", Slice(), "ada")
    backfills.stop_readers(engine, backfill, [A])
    return str(job_id.backfill(backfill.root)), partial(
        store.record_failure, engine, backfill, "it cannot be made", resumes_flows=True
    )


def stop_by_another_backfill(engine: Engine) -> tuple[str, Callable[[], None]]:
    backfill = backfills.begin(engine, "bronze.a", Slice(), "ada")
    backfills.stop_readers(engine, backfill, [A])
    return str(job_id.backfill(backfill.root)), partial(
        store.record_failure, engine, backfill, "it cannot be made", resumes_flows=True
    )


def stop_by_rewind(engine: Engine) -> tuple[str, Callable[[], None]]:
    restore_point = RestorePoint(1, None, {A: 1}, 7.0)
    rewind = rewinds.plan(engine, "bronze.a", "2026-03-01", {"bronze.a": restore_point}, [], "ada", "a bug")
    rewinds.stop(engine, rewind)
    return str(job_id.rewind(rewind.number)), partial(rewinds.finish, engine, rewind, "done")


@pytest.mark.parametrize("stop", [stop_by_backfill, stop_by_rewind])
def test_a_flow_that_a_job_has_stopped_is_broken_once_that_job_died(engine: Engine, stop, monkeypatch):
    driver = healthy_driver(engine, Holder.here("main", 1))
    job, end_job = stop(engine)
    job_leases = lease.acquire(engine, [job], driver, 3600)
    assert settle(engine).decisions[A].state is State.STOPPED
    lease.release(engine, job_leases)
    assert settle(engine).decisions[A].state is State.STOPPED, "its next try may follow"
    monkeypatch.setattr(store, "AGAIN_SECONDS", 0)
    decision = settle(engine).decisions[A]
    assert (decision.state, decision.error) == (State.BROKEN, job.split()[0].upper() + "_UNFINISHED")
    assert "which died" in decision.reason
    end_job()
    assert settle(engine).decisions[A].state is State.STARTING


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_of_two_jobs_that_have_stopped_a_flow_the_last_one_lets_it_go_on(engine: Engine, order):
    healthy_driver(engine, Holder.here("main", 1))
    end_jobs = [stop(engine)[1] for stop in (stop_by_backfill, stop_by_another_backfill)]
    end_jobs[order[0]]()
    assert wanted_state(engine) == "stopped"
    end_jobs[order[1]]()
    assert wanted_state(engine) == "running"


def wanted_state(engine: Engine) -> str:
    with database.transaction(engine) as connection:
        return orders.order(connection, A).state


def test_nobody_else_writes_the_tables_of_a_rewind_until_it_is_done(engine: Engine):
    job, end_job = stop_by_rewind(engine)
    with pytest.raises(FlowBroken, match=f"nobody else may write it: {job} of bronze.a has begun and is not done"):
        rewinds.require_unblocked(engine, "bronze.a", lambda name: False)
    rewinds.require_unblocked(engine, "bronze.a", lambda name: name == job)
    rewinds.require_unblocked(engine, "silver.a", lambda name: False)
    end_job()
    rewinds.require_unblocked(engine, "bronze.a", lambda name: False)


def test_what_was_stale_or_planned_for_a_backfill_that_a_rewind_has_undone_is_forgotten(engine: Engine):
    with database.transaction(engine) as connection:
        stale_rows.mark_stale(connection, "bronze.a", Slice(), "made of what is no more")
        since = database.now(connection)
    backfills.begin(engine, "bronze.a", Slice(), "ada")
    for restored_at, count in ((since + 60, 1), (since - 60, 0)):
        cut = {"bronze.a": RestorePoint(1, None, {}, restored_at)}
        rewinds.finish(engine, rewinds.plan(engine, "bronze.a", "2026-03-01", cut, [], "ada", "a bug"), "done")
        assert len(stale_rows.stale_ranges(engine)) == count
        assert len([backfill for backfill in store.newest(engine, Backfill) if backfill.ended_at is None]) == count


def test_a_flow_that_was_stopped_with_the_platform_is_stopped_and_no_incident_and_comes_up_again(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    shutdown.begin(engine, {driver.python.pid, driver.jvm.pid})
    assert states(settle(engine)) == [State.HEALTHY] * 2
    driver.fence()
    for _ in range(2):
        # The supervisor and `status` agree.
        settlement = settle(engine)
        assert (states(settlement), launches(settlement)) == ([State.STOPPED] * 2, False)
        assert [decision.reason for _, decision in supervision.preview(engine, "main", FLOWS).values()] == [
            "stopped with the platform"
        ] * 2
        pass_time(engine, 1_000)
    shutdown.end(engine)
    settlement = settle(engine)
    assert (states(settlement), launches(settlement)) == ([State.STARTING] * 2, True)
    assert (notify(engine), open_incidents(engine)) == ([], [])


def test_a_driver_that_is_stopped_with_the_platform_on_its_way_has_not_failed(engine, sleeper):
    process = sleeper()
    launched(engine, settle(engine), Process.of(process.pid).to_json())
    shutdown.begin(engine, {process.pid})
    process.kill()
    process.wait()
    assert states(settle(engine)) == [State.STOPPED] * 2
    shutdown.end(engine)
    assert launches(settle(engine, dead=supervision.handles(engine).get("main")))
    assert notify(engine) == []


def test_a_driver_that_died_before_the_platform_was_stopped_or_that_is_none_of_its_own_is_not_hidden(engine, holder):
    dead_driver = healthy_driver(engine, holder("main"))
    dead_driver.fence()
    shutdown.begin(engine, {dead_driver.python.pid, dead_driver.jvm.pid})
    settlement = settle(engine)
    assert (states(settlement), launches(settlement)) == ([State.BACKING_OFF] * 2, False)
    shutdown.end(engine)
    foreign_driver = healthy_driver(engine, holder("main"))
    shutdown.begin(engine, {os.getpid()})
    foreign_driver.fence()
    assert states(settle(engine)) == [State.BACKING_OFF] * 2


def test_a_supervisor_that_was_started_by_other_means_than_make_up_takes_up_its_work(engine, holder):
    driver = healthy_driver(engine, holder("main"))
    shutdown.begin(engine, {driver.python.pid})
    driver.fence()
    shutdown.end(engine, older_than_seconds=60)
    assert states(settle(engine)) == [State.STOPPED] * 2
    with database.transaction(engine) as connection:
        connection.execute(update(shutdowns).values(began_at=shutdowns.c.began_at - 61))
    shutdown.end(engine, older_than_seconds=60)
    assert launches(settle(engine))
    assert notify(engine) == []


def test_flows_that_a_busy_driver_starts_one_after_the_other_are_not_stuck_and_the_one_that_hangs_is(engine, holder):
    launched(engine, settle(engine), "process 7")
    come_up(engine, holder("main"))
    give_back(engine, *FLOWS)
    pass_time(engine, SLOW_START_SECONDS - 20)
    assert states(settle(engine)) == [State.STARTING] * 2
    hold_again(engine, holder("main"), A)
    orders.begin(engine, [A], by_hand=False)
    pass_time(engine, SLOW_START_SECONDS - 20)
    settlement = settle(engine)
    assert states(settlement) == [State.STARTING] * 2
    # A second may pass between the two statements that the ages come from.
    waited = re.fullmatch(rf"its driver starts {A} first, for (\d+) s", settlement.decisions[B].reason)
    assert waited
    assert int(waited[1]) in range(SLOW_START_SECONDS - 20, SLOW_START_SECONDS)
    pass_time(engine, 21)
    assert states(settle(engine)) == [State.STUCK] * 2


def test_status_sees_as_the_supervisor_does_that_a_driver_died_on_its_way(engine, sleeper):
    process = sleeper()
    launched(engine, settle(engine), Process.of(process.pid).to_json())
    assert supervision.preview(engine, "main", FLOWS)[A][1].state is State.STARTING
    process.kill()
    process.wait()
    seen = supervision.preview(engine, "main", FLOWS)[A][1]
    decided = settle(engine, dead=supervision.handles(engine).get("main")).decisions[A]
    # A second may pass in between.
    assert re.sub(r"in \d+ s", "in N s", repr(seen)) == re.sub(r"in \d+ s", "in N s", repr(decided))
