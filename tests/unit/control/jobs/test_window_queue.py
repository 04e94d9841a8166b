"""Requests for windows: which driver opens one, what becomes of it, and what its requester reads."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, update

from include.control import lease, orders
from include.control.jobs import window_queue, windows
from include.control.jobs.windows import TableSize
from include.control.process import Holder
from include.control.store import database
from include.control.store.schema import window_requests

TABLE, DRIVER = "silver.readings", "main"
SIZE = TableSize(version=1, files=2, bytes=3, small_files=1, rows=4)


@pytest.fixture
def live(engine: Engine, holder: Callable[[], Holder]) -> lease.Lease:
    """The lease of the driver."""
    [driver_lease] = lease.acquire(engine, [lease.driver_lease(DRIVER)], holder(), 30)
    return driver_lease


@pytest.fixture
def number(engine: Engine) -> int:
    """A planned window."""
    return windows.plan(engine, TABLE, "a test", "many small files", True)


def requested_window(engine: Engine, driver: str = DRIVER) -> int | None:
    """The number of the window that the driver reads."""
    return orders.read(engine, driver, []).window


def open_window(engine: Engine, number: int, holder: Holder) -> lease.Lease:
    [window_lease] = lease.acquire(engine, [lease.window_lease(TABLE)], holder, 30)
    windows.request(engine, number, TABLE, window_lease.epoch)
    windows.open_(engine, number, SIZE)
    return window_lease


def test_a_driver_that_is_not_alive_is_not_asked(engine, number):
    assert not window_queue.request(engine, number, DRIVER)
    assert requested_window(engine) is None


def test_only_the_driver_that_is_asked_reads_the_request(engine, live, number):
    assert window_queue.request(engine, number, DRIVER)
    assert (requested_window(engine), requested_window(engine, "side")) == (number, None)


def test_one_of_two_that_claim_a_window_gets_it(engine, live, number):
    other = windows.plan(engine, TABLE, "a test", "more small files", True)
    for asked in (number, number, other):
        window_queue.request(engine, asked, DRIVER)
    assert [window_queue.claim(engine, number), window_queue.claim(engine, number)] == [True, False]
    assert requested_window(engine) == other


def test_the_next_driver_reads_what_one_hands_back(engine, live, number):
    window_queue.request(engine, number, DRIVER)
    window_queue.claim(engine, number)
    window_queue.hand_back(engine, number, DRIVER)
    window_queue.hand_back(engine, number, DRIVER)
    assert requested_window(engine) == number
    assert window_queue.claim(engine, number)
    assert requested_window(engine) is None


def test_the_requester_reads_each_step_until_the_end(engine, live, number, holder):
    assert window_queue.status(engine, number + 1).failure == f"nobody planned window {number + 1}"
    window_queue.request(engine, number, DRIVER)
    status = window_queue.status(engine, number)
    assert (status.message, status.is_in_hand) == ("driver 'main' is asked to do it", True)
    window_queue.claim(engine, number)
    status = window_queue.status(engine, number)
    assert (status.message, status.is_in_hand, status.is_done) == ("a driver is about to open it", False, False)
    open_window(engine, number, holder())
    assert window_queue.status(engine, number).message == f"{TABLE}: open"
    windows.begin_step(engine, number, "optimize")
    status = window_queue.status(engine, number)
    assert (status.message, status.is_in_hand, status.failure) == (f"{TABLE}: optimize", True, None)
    windows.close(engine, number, SIZE)
    status = window_queue.status(engine, number)
    assert (status.message, status.is_done, status.failure) == ("it is done", True, None)


def test_a_window_that_failed_is_done_and_one_whose_driver_died_has_failed(engine, live, number, holder):
    window_lease = open_window(engine, number, holder())
    lease.release(engine, [window_lease])
    status = window_queue.status(engine, number)
    assert (status.is_done, status.failure) == (False, "many small files; its job died")
    assert windows.find(engine, number).state == "failed"
    windows.close_unfinished(engine, number, "failed", "it took too long")
    status = window_queue.status(engine, number)
    assert (status.message, status.is_done, status.failure) == ("it is failed", True, None)


def test_the_lease_of_a_later_window_does_not_keep_an_earlier_one_open(engine, number, holder):
    lease.release(engine, [open_window(engine, number, holder())])
    later = windows.plan(engine, TABLE, "a test", "again", True)
    [window_lease] = lease.acquire(engine, [lease.window_lease(TABLE)], holder(), 30)
    assert windows.find(engine, number).state == "failed"
    windows.request(engine, later, TABLE, window_lease.epoch)
    assert [window.state for window in windows.calendar(engine, TABLE)] == ["asked", "failed"]


def test_a_driver_that_does_not_begin_in_time_or_died_has_nothing_in_hand(engine, live, number):
    window_queue.request(engine, number, DRIVER)
    with database.transaction(engine) as connection:
        long_ago = database.now(connection) - window_queue.CLAIM_TIMEOUT_SECONDS - 1
        connection.execute(update(window_requests).values(asked_at=long_ago))
    assert not window_queue.status(engine, number).is_in_hand
    with database.transaction(engine) as connection:
        connection.execute(update(window_requests).values(asked_at=database.now(connection)))
    assert window_queue.status(engine, number).is_in_hand
    lease.release(engine, [live])
    assert not window_queue.status(engine, number).is_in_hand
