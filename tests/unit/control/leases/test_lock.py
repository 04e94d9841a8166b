"""A table's lock: appends share it, other writers have it alone, each gets it, and no dead process keeps it."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from sqlalchemy import Engine, select, update

from include.control.jobs import store, windows
from include.control.jobs.windows import Window
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease, lock
from include.control.leases.lock import LockRequest
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import leases
from tests.support.waiting import sleep_through, wait_until

TABLE = "silver.readings"
WINDOW = LockRequest(lease.window_lease(TABLE), TABLE, alone=True)
APPEND, UPSERT = LockRequest("a flow", TABLE, alone=False), LockRequest("an upsert", TABLE, alone=True)


@pytest.fixture
def hold(engine: Engine, holder) -> Callable[..., Holder]:
    """Gives leases to a new holder, or to `by`."""

    def give(*entries: LockRequest, by: Holder | None = None, ttl_seconds: float = 60) -> Holder:
        by = by or holder()
        lease.acquire(engine, [entry.name for entry in entries], by, ttl_seconds)
        return by

    return give


@pytest.fixture
def enter(engine: Engine) -> Callable[[LockRequest], str | None]:
    """Tries to enter. Returns None, or the name of the request that is in the way."""

    def attempt(entry: LockRequest) -> str | None:
        with database.transaction(engine) as connection:
            obstacle = lock.enter(connection, entry)
        return obstacle and obstacle.name

    return attempt


@pytest.fixture
def leave(engine: Engine) -> Callable[[LockRequest], None]:
    def end(entry: LockRequest) -> None:
        with database.transaction(engine) as connection:
            lock.release(connection, entry.name)

    return end


def test_appends_share_a_table(hold, enter):
    other = LockRequest("another flow", TABLE, alone=False)
    hold(APPEND)
    hold(other)
    assert (enter(APPEND), enter(other)) == (None, None)


def test_writers_whose_late_commits_fail_share_a_table_with_each_other_alone(hold, enter, leave):
    first = LockRequest("a driver", TABLE, alone=False, is_conditional=True)
    compaction = replace(WINDOW, alone=False, is_conditional=True)
    for entry in (first, compaction, APPEND):
        hold(entry)
    assert (enter(first), enter(compaction)) == (None, None)
    assert enter(APPEND) in (first.name, compaction.name), "a commit of it could replace another one"
    assert enter(replace(compaction, alone=True)) == first.name
    leave(first)
    assert enter(replace(compaction, alone=True)) is None
    leave(compaction)
    assert (enter(APPEND), enter(first)) == (None, APPEND.name)


def test_a_window_waits_for_those_inside_and_keeps_new_ones_out(hold, enter, leave):
    hold(APPEND)
    hold(WINDOW)
    assert enter(APPEND) is None
    assert enter(WINDOW) == APPEND.name
    leave(APPEND)
    assert enter(APPEND) == WINDOW.name, "it was announced, so its turn has come"
    assert enter(WINDOW) is None
    assert enter(APPEND) == WINDOW.name
    leave(WINDOW)
    assert enter(APPEND) is None


def test_a_window_on_one_table_is_nothing_to_another(hold, enter):
    other = LockRequest("a flow", "silver.others", alone=False)
    hold(WINDOW)
    hold(other)
    assert (enter(WINDOW), enter(other)) == (None, None)


def test_of_two_that_want_to_be_alone_the_first_comes_first(hold, enter, leave):
    for entry in (APPEND, UPSERT, WINDOW):
        hold(entry)
    enter(APPEND)
    assert enter(UPSERT) == APPEND.name
    assert enter(WINDOW) == APPEND.name
    leave(APPEND)
    assert enter(WINDOW) == UPSERT.name
    assert enter(UPSERT) is None
    leave(UPSERT)
    assert enter(UPSERT) == WINDOW.name, "it comes again, behind those who wait"
    assert enter(WINDOW) is None


def test_a_wait_for_one_table_gives_no_earlier_place_in_the_queue_of_another(engine: Engine, hold, enter):
    window_elsewhere = replace(WINDOW, table="silver.others")
    for entry in (APPEND, replace(APPEND, name="a flow elsewhere"), UPSERT, WINDOW):
        hold(entry)
    enter(replace(APPEND, name="a flow elsewhere", table="silver.others"))
    enter(window_elsewhere)
    enter(APPEND)
    assert enter(UPSERT) == APPEND.name
    assert enter(WINDOW) == APPEND.name
    with database.transaction(engine) as connection:
        wanted_at = dict(connection.execute(select(leases.c.flow, leases.c.wanted_at)).all())
    assert wanted_at[UPSERT.name] < wanted_at[WINDOW.name]


def test_a_clock_that_was_set_back_does_not_let_two_in_who_want_to_be_alone(engine: Engine, hold, enter):
    for entry in (UPSERT, WINDOW):
        hold(entry)
    assert enter(UPSERT) is None
    with database.transaction(engine) as connection:
        in_an_hour = {"wanted_at": database.now(connection) + 3600}
        connection.execute(update(leases).where(leases.c.flow == UPSERT.name).values(in_an_hour))
    assert enter(WINDOW) == UPSERT.name


def test_the_obstacle_is_whoever_came_first(hold, enter):
    flows = [LockRequest(name, TABLE, alone=False) for name in ("c", "b", "d", "a")]
    for entry in (*flows, WINDOW):
        hold(entry)
    for entry in flows:
        enter(entry)
    assert enter(WINDOW) == "c"


def test_whoever_no_longer_wants_to_be_alone_keeps_nobody_out(hold, enter, leave):
    for entry in (APPEND, WINDOW):
        hold(entry)
    enter(APPEND)
    enter(WINDOW)
    leave(WINDOW)
    assert enter(APPEND) is None


def test_the_flow_of_a_table_writes_inside_the_window_of_its_own_process_only(hold, enter):
    job = hold(WINDOW, UPSERT)
    assert enter(WINDOW) is None
    assert enter(UPSERT) is None
    job.fence()
    hold(UPSERT)
    assert enter(UPSERT) == WINDOW.name


@pytest.mark.parametrize("dies", [True, False], ids=["its holder has died", "its lease has run out"])
def test_a_window_that_nobody_holds_any_more_is_removed_and_what_is_left_of_it_ended(hold, enter, engine, dies):
    job = hold(WINDOW, ttl_seconds=60 if dies else 0.001)
    flow = hold(APPEND)
    enter(WINDOW)
    if dies:
        job.python.kill()
    with database.transaction(engine) as connection:
        obstacle = lock.enter(connection, APPEND)
    assert obstacle
    assert obstacle.is_gone
    lock.expel(engine, obstacle, flow)
    assert not (job.jvm.is_alive or job.python.is_alive)
    assert enter(APPEND) is None


def test_one_that_renewed_after_all_is_left_its_lease(hold, engine, enter):
    job = hold(WINDOW)
    enter(WINDOW)
    flow = hold(APPEND)
    with database.transaction(engine) as connection:
        obstacle = lock.enter(connection, APPEND)
        assert obstacle
        lease.renew(connection, [lease.Lease(WINDOW.name, obstacle.epoch)], 60)
    lock.expel(engine, obstacle, flow)
    assert enter(APPEND) == WINDOW.name
    assert not job.jvm.is_alive


@contextmanager
def renewing(engine: Engine, holder: Holder, *names: str) -> Iterator[LeaseRenewer]:
    renewer = LeaseRenewer(engine, holder, 60, lambda reason: None)
    renewer.take(list(names))
    renewer.start()
    try:
        yield renewer
    finally:
        renewer.stop()


def test_a_flow_waits_at_the_gate_for_a_window_and_its_pause_is_in_the_calendar(engine, holder):
    number = windows.plan(engine, TABLE, "a test", "small files", is_worth_it=True)
    waits: list[int] = []

    def wait() -> bool:
        waits.append(1)
        return True

    with renewing(engine, holder(), WINDOW.name) as job, renewing(engine, holder(), APPEND.name) as driver:
        windows.request(engine, number, TABLE, job.epoch(WINDOW.name))
        assert job.enter(WINDOW, lambda: True)
        size = windows.TableSize(1, 2, 3, 4, 5)
        windows.open_(engine, number, size)
        flow = threading.Thread(target=lambda: driver.enter(APPEND, wait))
        flow.start()
        wait_until(lambda: len(waits) > 2, 20)
        assert flow.is_alive()
        windows.close(engine, number, size)
        job.leave(WINDOW.name)
        flow.join(20)
        assert not flow.is_alive()
    (window,) = store.newest(engine, Window)
    (pause,) = window.pauses
    assert (window.state, window.table, window.before, pause.flow) == ("done", TABLE, size, APPEND.name)
    assert 0 <= pause.beyond_seconds <= pause.seconds


def test_a_flow_that_is_to_stop_does_not_wait(engine, holder):
    with renewing(engine, holder(), WINDOW.name) as job, renewing(engine, holder(), APPEND.name) as driver:
        assert job.enter(WINDOW, lambda: True)
        assert driver.enter(APPEND, iter([True, True, False]).__next__) is False


def test_a_window_whose_job_died_is_named_in_the_calendar_at_once_and_by_the_next_one(engine, hold):
    first, second = (windows.plan(engine, TABLE, "a test", "small files", is_worth_it=True) for _ in range(2))
    job = hold(WINDOW)
    windows.request(engine, first, TABLE, 1)
    with database.transaction(engine) as connection:
        lease.renew(connection, [lease.Lease(WINDOW.name, 1)], 0.001)
    job.fence()
    first_window = store.get(engine, Window, first)
    assert first_window
    assert (first_window.state, first_window.reason) == ("failed", "small files; its job died")
    hold(WINDOW)
    windows.request(engine, second, TABLE, 2)
    assert [window.state for window in store.newest(engine, Window, TABLE)] == ["asked", "failed"]


def test_nobody_is_ever_beside_one_who_is_alone_and_everybody_gets_in(engine, holder):
    entries = [LockRequest(f"flow {number}", TABLE, alone=False) for number in range(3)] + [UPSERT, WINDOW]
    inside: set[LockRequest] = set()
    groups: list[set[LockRequest]] = []
    guard, rounds = threading.Lock(), dict.fromkeys(entries, 0)

    def work(renewer: LeaseRenewer, entry: LockRequest, dice: random.Random) -> None:
        for _ in range(6):
            assert renewer.enter(entry, lambda: True)
            with guard:
                inside.add(entry)
                groups.append(set(inside))
            sleep_through(dice.uniform(0, 0.05))
            with guard:
                inside.discard(entry)
            renewer.leave(entry.name)
            rounds[entry] += 1

    with (
        renewing(engine, holder(), *(entry.name for entry in entries[:3])) as driver,
        renewing(engine, holder(), UPSERT.name) as other,
        renewing(engine, holder(), WINDOW.name) as job,
    ):
        threads = [
            threading.Thread(target=work, args=(renewer, entry, random.Random(number)))
            for number, (renewer, entry) in enumerate(zip([driver] * 3 + [other, job], entries, strict=True))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert set(rounds.values()) == {6}
    assert [group for group in groups if len(group) > 1 and any(entry.alone for entry in group)] == []
