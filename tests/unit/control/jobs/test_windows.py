"""The calendar of windows: their states, times and sizes, and how long flows waited for them."""

import re
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, update

from include.control.jobs import store, windows
from include.control.jobs.windows import GateWait, TableSize, Window
from include.control.leases import lease, lock
from include.control.leases.lock import CONDITIONAL, LockRequest
from include.control.leases.process import Holder
from include.control.store import database, schema
from include.control.store.job_schema import jobs
from include.errors import UsageError
from tests.support.windows import set_times

TABLE, OTHER, FLOW = "silver.readings", "silver.other", "silver.readings"
BEFORE, AFTER = TableSize(1, 4, 100, 3, 10), TableSize(2, 1, 90, 0, None)


@pytest.fixture
def opened(engine: Engine, holder: Callable[[], Holder]) -> tuple[int, lease.Lease]:
    """An open window, and its lease."""
    number = windows.plan(engine, TABLE, "ada", "small files", True)
    [window_lease] = lease.acquire(engine, [lease.window_lease(TABLE)], holder(), 60)
    windows.request(engine, number, TABLE, window_lease.epoch)
    windows.open_(engine, number, BEFORE)
    return number, window_lease


def test_a_window_that_is_not_worth_it_is_skipped_and_the_newest_comes_first(engine: Engine):
    skipped = windows.plan(engine, TABLE, "ada", "nothing to do", False)
    planned = windows.plan(engine, OTHER, "bob", "small files", True)
    assert [(one.number, one.table, one.state, one.who, one.reason) for one in store.newest(engine, Window)] == [
        (planned, OTHER, "planned", "bob", "small files"),
        (skipped, TABLE, "skipped", "ada", "nothing to do"),
    ]
    assert [one.number for one in store.newest(engine, Window, TABLE)] == [skipped]
    assert [one.number for one in store.newest(engine, Window, limit=1)] == [planned]
    with pytest.raises(UsageError, match=f"there is no window {planned + 1}"):
        store.get(engine, Window, planned + 1)


def test_a_window_has_the_time_of_each_state_and_the_size_of_its_table_before_and_after(engine: Engine, opened):
    number, _ = opened
    windows.begin_step(engine, number, "optimize")
    window = store.get(engine, Window, number)
    assert window and (window.state, window.message, window.before, window.after) == ("open", "optimize", BEFORE, None)
    assert window.asked_at and window.opened_at and window.ended_at is None
    assert window.planned_at <= window.asked_at <= window.opened_at
    windows.close(engine, number, AFTER)
    window = store.get(engine, Window, number)
    assert window and (window.state, window.reason, window.before, window.after) == (
        "done",
        "small files",
        BEFORE,
        AFTER,
    )
    assert window.opened_at and window.ended_at and window.ended_at >= window.opened_at
    assert (BEFORE.small_ratio, AFTER.small_ratio, TableSize(0, 0, 0, 0, 0).small_ratio) == (0.75, 0, 0)


@pytest.mark.parametrize("state", ["asked", "open"])
def test_the_next_window_of_a_table_finds_that_the_job_of_the_one_before_died(engine: Engine, opened, state: str):
    number, window_lease = opened
    with database.transaction(engine) as connection:
        connection.execute(update(jobs).values(state=state))
    later, others = windows.plan(engine, TABLE, "ada", "again", True), windows.plan(engine, OTHER, "ada", "", True)
    windows.request(engine, others, OTHER, 1)
    windows.request(engine, later, TABLE, window_lease.epoch)
    with database.reading(engine) as connection:
        stored = {row.number: row.state for row in connection.execute(jobs.select())}
    assert stored == {number: "failed", later: "asked", others: "asked"}
    assert store.get(engine, Window, number).reason == "small files; its job died"


def test_the_next_window_leaves_those_that_are_over_as_they_are_and_one_that_is_tried_again_is_not_over(engine, opened):
    number, window_lease = opened
    windows.close(engine, number, AFTER)
    later = windows.plan(engine, TABLE, "ada", "again", True)
    windows.request(engine, later, TABLE, window_lease.epoch)
    assert (store.get(engine, Window, number).state, store.get(engine, Window, number).reason) == (
        "done",
        "small files",
    )
    windows.close_unfinished(engine, later, "failed", "no space")
    assert store.get(engine, Window, later).ended_at
    windows.request(engine, later, TABLE, window_lease.epoch)
    assert (store.get(engine, Window, later).state, store.get(engine, Window, later).ended_at) == ("asked", None)


def test_flows_wait_for_the_open_window_of_their_own_table(engine: Engine, opened):
    _, window_lease = opened

    def described() -> dict[str, str]:
        with database.reading(engine) as connection:
            return windows.open_windows(connection, [TABLE, OTHER])

    assert described() == {}, "its job has not asked for the lock"
    with database.transaction(engine) as connection:
        lock.enter(connection, LockRequest(window_lease.flow, TABLE, alone=True))
    sentences = described()
    assert list(sentences) == [TABLE]
    assert re.fullmatch(rf"a window has {TABLE} to itself for \d s \(.*pid \d+.*\)", sentences[TABLE]), sentences
    values = (("mode", CONDITIONAL), ("writes", OTHER), ("expires_at", 1.0))
    for name, value in values:
        with database.transaction(engine) as connection:
            before = connection.execute(schema.leases.select()).one()._mapping[name]
            connection.execute(update(schema.leases).values({name: value}))
        assert described() == {}, name
        with database.transaction(engine) as connection:
            connection.execute(update(schema.leases).values({name: before}))
    assert list(described()) == [TABLE]


def test_a_wait_at_the_gate_is_counted_within_its_window_and_beyond(engine: Engine, opened):
    number, window_lease = opened
    request = LockRequest(FLOW, TABLE, alone=False)
    with database.transaction(engine) as connection:
        windows.record_pause(connection, request, window_lease.epoch, 100, 107)
        windows.record_pause(connection, LockRequest("other", TABLE, alone=False), window_lease.epoch, 103, 104)
        windows.record_pause(connection, LockRequest("late", TABLE, alone=False), window_lease.epoch, 110, 112)
        # These waited for another window, and for one of another table.
        windows.record_pause(connection, request, window_lease.epoch + 1, 100, 107)
        windows.record_pause(connection, LockRequest(FLOW, OTHER, alone=False), window_lease.epoch, 100, 107)
    set_times(engine, number, opened_at=102, closed_at=105)
    waits = (GateWait(FLOW, 7, 4), GateWait("other", 1, 0), GateWait("late", 2, 2))
    assert store.get(engine, Window, number).pauses == waits
    set_times(engine, number, opened_at=102, closed_at=None)
    assert store.get(engine, Window, number).pauses == (
        GateWait(FLOW, 7, 2),
        GateWait("other", 1, 0),
        GateWait("late", 2, 0),
    )
    set_times(engine, number, opened_at=None, closed_at=None)
    assert [wait.beyond_seconds for wait in store.get(engine, Window, number).pauses] == [7, 1, 2]
