"""Requests for backfills: what a driver reads, and the status that a requester reads."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine

from include.control import lease, orders
from include.control.jobs import backfill_queue, backfills
from include.control.process import Holder
from include.errors import FlowFailed
from include.project import ranges
from include.project.ranges import Slice

TABLE, DRIVER = "silver.readings", "main"
DAY = ranges.from_stored_texts("2026-03-01T00:00:00.000000Z", "2026-03-02T00:00:00.000000Z")


@pytest.fixture
def live(engine: Engine, holder: Callable[[], Holder]) -> lease.Lease:
    """The lease of the driver."""
    [driver_lease] = lease.acquire(engine, [lease.driver_lease(DRIVER)], holder(), 30)
    return driver_lease


def request_backfill(engine: Engine, range_: Slice = DAY, driver: str = DRIVER) -> int | None:
    return backfill_queue.request(engine, TABLE, range_, "a test", driver)


def requested_backfill(engine: Engine) -> int | None:
    """The number of the backfill that the driver reads."""
    return orders.read(engine, DRIVER, []).backfill


def acquire_job_lease(engine: Engine, holder: Holder, number: int) -> list[lease.Lease]:
    return lease.acquire(engine, [backfills.lease_name(number)], holder, 30)


def finish(engine: Engine, number: int) -> None:
    backfills.finish(engine, backfills.find(engine, number), 1, (1, 1), [], {})


def test_a_driver_that_does_not_live_is_not_asked_and_nothing_is_entered(engine):
    assert request_backfill(engine) is None
    assert backfills.newest(engine) == []


def test_a_driver_is_told_of_the_oldest_first_and_of_those_of_others_never(engine, live):
    first, second = request_backfill(engine), request_backfill(engine, Slice())
    assert (requested_backfill(engine), orders.read(engine, "side", []).backfill) == (first, None)
    backfill_queue.withdraw(engine, first)
    assert requested_backfill(engine) == second


def test_the_same_asked_twice_is_one_until_it_is_begun(engine, live):
    number = request_backfill(engine)
    assert request_backfill(engine) == number
    backfill_queue.claim(engine, number)
    assert request_backfill(engine) != number


def test_what_a_live_driver_is_asked_for_is_neither_taken_up_by_a_job_nor_ended_by_another(engine, live):
    number, wide_number = request_backfill(engine), backfills.begin(engine, TABLE, Slice(), "a test").number
    assert backfills.begin(engine, TABLE, DAY, "a job").number != number
    finish(engine, wide_number)
    assert not backfill_queue.status(engine, number).is_done
    lease.release(engine, [live])
    assert backfills.begin(engine, TABLE, DAY, "a job").number == number


def test_what_has_ended_two_drivers_is_begun_by_no_third(engine, live):
    number = request_backfill(engine)
    for _ in range(backfill_queue.TRIES):
        assert backfill_queue.claim(engine, number).number == number
    with pytest.raises(FlowFailed, match=r"do it in a process of its own, spark-submit jobs/backfill\.py"):
        backfill_queue.claim(engine, number)


def test_a_driver_that_left_it_in_order_does_not_count(engine, live):
    number = request_backfill(engine)
    for _ in range(backfill_queue.TRIES + 1):
        assert backfill_queue.claim(engine, number)
        backfill_queue.hand_back(engine, number)


def test_whoever_waits_is_told_who_is_at_it_how_it_ended_and_where_nobody_is(engine, live, holder):
    number = request_backfill(engine)
    assert backfill_queue.status(engine, number) == backfill_queue.RequestStatus("driver 'main' is asked to do it")
    backfill_queue.claim(engine, number)
    [job_lease] = acquire_job_lease(engine, holder(), number)
    backfills.set_phase(engine, number, backfills.COMPUTING, "makes rows")
    status = backfill_queue.status(engine, number)
    assert (status.message, status.is_in_hand, status.failure) == (f"{TABLE}: computing: makes rows", True, None)
    later_number = request_backfill(engine, Slice())
    assert backfill_queue.status(engine, later_number).is_in_hand
    lease.release(engine, [job_lease])
    backfill_queue.fail(engine, number, "it broke a rule")
    assert backfill_queue.status(engine, number).failure == "it broke a rule"
    assert not backfill_queue.status(engine, later_number).is_in_hand
    assert request_backfill(engine) == number
    assert backfill_queue.status(engine, number).failure is None
    finish(engine, number)
    backfill_queue.withdraw(engine, number)
    assert backfill_queue.status(engine, number).is_done


def test_a_driver_that_failed_says_nothing_of_what_another_job_is_at(engine, live, holder):
    number = request_backfill(engine)
    acquire_job_lease(engine, holder(), number)
    backfill_queue.fail(engine, number, "somebody else has it")
    assert backfills.find(engine, number).failure is None
    assert backfill_queue.status(engine, number).is_in_hand


def test_a_request_is_noted_at_its_own_backfill_until_that_has_begun(engine, live):
    other = backfills.begin(engine, TABLE, Slice(), "a test").number
    number = request_backfill(engine)
    said = f"driver '{DRIVER}' is asked to do it"
    assert backfills.find(engine, number).message == said
    assert backfills.find(engine, other).message != said
    backfills.set_phase(engine, number, backfills.COMPUTING, "computes rows")
    assert request_backfill(engine) == number
    assert backfills.find(engine, number).message == "computes rows"


def test_ranges_are_the_same_if_both_ends_are(engine, live):
    number = request_backfill(engine)
    longer = ranges.from_stored_texts("2026-03-01T00:00:00.000000Z", "2026-03-03T00:00:00.000000Z")
    later = ranges.from_stored_texts("2026-03-01T12:00:00.000000Z", "2026-03-02T00:00:00.000000Z")
    assert len({number, request_backfill(engine, longer), request_backfill(engine, later)}) == 3


def test_the_failure_of_one_backfill_is_none_of_another(engine, live):
    number, other = request_backfill(engine), request_backfill(engine, Slice())
    backfill_queue.fail(engine, number, "no space left")
    assert backfills.find(engine, number).failure == "no space left"
    assert backfills.find(engine, other).failure is None
    status = backfill_queue.status(engine, number)
    assert (status.message, status.failure) == ("no driver is asked for it", "no space left")


def test_what_is_done_has_no_failure(engine, live):
    number = request_backfill(engine)
    finish(engine, number)
    assert backfill_queue.status(engine, number) == backfill_queue.RequestStatus("it is done", is_done=True)


def test_a_driver_that_handed_a_backfill_back_has_all_its_tries_left(engine, live):
    number = request_backfill(engine)
    backfill_queue.claim(engine, number)
    backfill_queue.hand_back(engine, number)
    assert request_backfill(engine) == number
    for _ in range(backfill_queue.TRIES):
        backfill_queue.claim(engine, number)
    with pytest.raises(FlowFailed):
        backfill_queue.claim(engine, number)
