"""What a driver is asked to do: which job it reads, what becomes of it, and what its requester reads."""

from collections.abc import Callable

import pytest
from sqlalchemy import Engine, update

from include.control.flows import orders, queue
from include.control.flows.queue import JobStatus
from include.control.jobs import all_kinds, backfills, store, windows
from include.control.jobs.backfills import Backfill
from include.control.jobs.windows import TableSize, Window
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database, job_id
from include.control.store.job_id import JobId, JobKind
from include.control.store.job_schema import jobs
from include.errors import FlowFailed
from include.project import ranges
from include.project.ranges import Slice

TABLE, DRIVER = "silver.readings", "main"
MOST_TRIES = 2
DAY = ranges.from_stored_texts("2026-03-01T00:00:00.000000Z", "2026-03-02T00:00:00.000000Z")
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


def request_window(engine: Engine, number: int) -> bool:
    return queue.request(engine, job_id.window(number), DRIVER)


def request_backfill(engine: Engine, range_: Slice = DAY, driver: str = DRIVER) -> int | None:
    return backfills.request(engine, TABLE, range_, "a test", driver)


def claim(engine: Engine, job: JobId) -> bool:
    if job.kind == JobKind.WINDOW:
        return queue.claim(engine, job, 1, "spark-submit jobs/maintain.py")
    return queue.claim(engine, job, MOST_TRIES, "spark-submit jobs/backfill.py")


def requested_backfill(engine: Engine) -> int | None:
    """The number of the backfill that the driver reads."""
    job = orders.read(engine, DRIVER, []).job
    return job and job.number


def acquire_job_lease(engine: Engine, holder: Holder, number: int) -> list[lease.Lease]:
    return lease.acquire(engine, [str(job_id.backfill(number))], holder, 30)


def finish(engine: Engine, number: int) -> None:
    backfills.finish(engine, store.get(engine, Backfill, number), 1, (1, 1), [], {})


def test_a_driver_that_does_not_live_is_not_asked_and_nothing_is_entered(engine):
    assert request_backfill(engine) is None
    assert store.newest(engine, Backfill) == []


def test_a_driver_is_told_of_the_oldest_first_and_of_those_of_others_never(engine, live):
    first, second = request_backfill(engine), request_backfill(engine, Slice())
    assert (requested_backfill(engine), orders.read(engine, "side", []).job) == (first, None)
    queue.withdraw(engine, job_id.backfill(first))
    assert requested_backfill(engine) == second


def test_the_job_that_was_asked_for_first_comes_first_whatever_its_number(engine, live):
    first, second = request_backfill(engine), request_backfill(engine, Slice())

    def set_asked_at(asked_at: float, number: int) -> None:
        with database.transaction(engine) as connection:
            connection.execute(update(jobs).where(jobs.c.number == number).values(asked_at=asked_at))

    set_asked_at(2.0, first)
    set_asked_at(1.0, second)
    assert orders.read(engine, DRIVER, []).job == job_id.backfill(second)
    set_asked_at(2.0, second)
    assert orders.read(engine, DRIVER, []).job == job_id.backfill(first)


def test_the_same_asked_twice_is_one_until_it_is_begun(engine, live):
    number = request_backfill(engine)
    assert request_backfill(engine) == number
    claim(engine, job_id.backfill(number))
    assert request_backfill(engine) != number


def test_what_a_live_driver_is_asked_for_is_neither_taken_up_by_a_job_nor_ended_by_another(engine, live):
    number, wide_number = request_backfill(engine), backfills.begin(engine, TABLE, Slice(), "a test").number
    assert backfills.begin(engine, TABLE, DAY, "a job").number != number
    finish(engine, wide_number)
    assert not all_kinds.status(engine, job_id.backfill(number)).is_done
    lease.release(engine, [live])
    assert backfills.begin(engine, TABLE, DAY, "a job").number == number


def test_what_has_ended_two_drivers_is_begun_by_no_third(engine, live):
    number = request_backfill(engine)
    for _ in range(MOST_TRIES):
        assert claim(engine, job_id.backfill(number))
    with pytest.raises(FlowFailed, match=r"do it in a process of its own, spark-submit jobs/backfill\.py"):
        claim(engine, job_id.backfill(number))


def test_what_does_not_say_how_often_it_may_be_begun_is_begun_once(engine, live):
    backfill = job_id.backfill(request_backfill(engine))
    assert queue.claim(engine, backfill)
    with pytest.raises(FlowFailed, match="not completed"):
        queue.claim(engine, backfill)


def test_a_driver_that_left_it_in_order_does_not_count(engine, live):
    number = request_backfill(engine)
    for _ in range(MOST_TRIES + 1):
        assert claim(engine, job_id.backfill(number))
        queue.hand_back(engine, job_id.backfill(number))


def test_whoever_waits_is_told_who_is_at_it_how_it_ended_and_where_nobody_is(engine, live, holder):
    number = request_backfill(engine)
    assert all_kinds.status(engine, job_id.backfill(number)) == JobStatus(
        "driver 'main' is asked to do it", is_in_hand=True
    )
    claim(engine, job_id.backfill(number))
    [job_lease] = acquire_job_lease(engine, holder(), number)
    store.enter(engine, store.get(engine, Backfill, number), backfills.COMPUTING, "makes rows")
    status = all_kinds.status(engine, job_id.backfill(number))
    assert (status.message, status.is_in_hand, status.failure) == (f"{TABLE}: computing: makes rows", True, None)
    later_number = request_backfill(engine, Slice())
    assert all_kinds.status(engine, job_id.backfill(later_number)) == JobStatus(
        "driver 'main' does another one first", is_in_hand=True
    )
    lease.release(engine, [job_lease])
    store.fail_request(engine, job_id.backfill(number), "it broke a rule")
    assert all_kinds.status(engine, job_id.backfill(number)).failure == "it broke a rule"
    assert all_kinds.status(engine, job_id.backfill(later_number)).message == "driver 'main' is asked to do it"
    assert request_backfill(engine) == number
    assert all_kinds.status(engine, job_id.backfill(number)).failure is None
    finish(engine, number)
    queue.withdraw(engine, job_id.backfill(number))
    assert all_kinds.status(engine, job_id.backfill(number)).is_done


def test_what_another_driver_is_at_keeps_nobody_waiting(engine, live, holder):
    lease.acquire(engine, [lease.driver_lease("side")], holder(), 30)
    claim(engine, job_id.backfill(request_backfill(engine, Slice(), driver="side")))
    waiting = all_kinds.status(engine, job_id.backfill(request_backfill(engine)))
    assert waiting.message == "driver 'main' is asked to do it"


def test_a_driver_that_failed_says_nothing_of_what_another_job_is_at(engine, live, holder):
    number = request_backfill(engine)
    acquire_job_lease(engine, holder(), number)
    store.fail_request(engine, job_id.backfill(number), "somebody else has it")
    assert store.get(engine, Backfill, number).failure is None
    assert all_kinds.status(engine, job_id.backfill(number)).is_in_hand


def test_a_request_is_noted_at_its_own_backfill_until_that_has_begun(engine, live):
    other = backfills.begin(engine, TABLE, Slice(), "a test").number
    number = request_backfill(engine)
    said = f"driver '{DRIVER}' is asked to do it"
    assert store.get(engine, Backfill, number).message == said
    assert store.get(engine, Backfill, other).message != said
    store.enter(engine, store.get(engine, Backfill, number), backfills.COMPUTING, "computes rows")
    assert request_backfill(engine) == number
    assert store.get(engine, Backfill, number).message == "computes rows"


def test_ranges_are_the_same_if_both_ends_are(engine, live):
    number = request_backfill(engine)
    longer = ranges.from_stored_texts("2026-03-01T00:00:00.000000Z", "2026-03-03T00:00:00.000000Z")
    later = ranges.from_stored_texts("2026-03-01T12:00:00.000000Z", "2026-03-02T00:00:00.000000Z")
    assert len({number, request_backfill(engine, longer), request_backfill(engine, later)}) == 3


def test_the_failure_of_one_backfill_is_none_of_another(engine, live):
    number, other = request_backfill(engine), request_backfill(engine, Slice())
    store.fail_request(engine, job_id.backfill(number), "no space left")
    assert store.get(engine, Backfill, number).failure == "no space left"
    assert store.get(engine, Backfill, other).failure is None
    status = all_kinds.status(engine, job_id.backfill(number))
    assert (status.message, status.failure) == ("no driver is asked for it", "no space left")


def test_what_is_done_has_no_failure(engine, live):
    number = request_backfill(engine)
    finish(engine, number)
    assert all_kinds.status(engine, job_id.backfill(number)) == JobStatus("it is done", is_done=True)


def test_a_driver_that_handed_a_backfill_back_has_all_its_tries_left(engine, live):
    number = request_backfill(engine)
    claim(engine, job_id.backfill(number))
    queue.hand_back(engine, job_id.backfill(number))
    assert request_backfill(engine) == number
    for _ in range(MOST_TRIES):
        claim(engine, job_id.backfill(number))
    with pytest.raises(FlowFailed):
        claim(engine, job_id.backfill(number))


def requested_window(engine: Engine, driver: str = DRIVER) -> int | None:
    """The number of the window that the driver reads."""
    job = orders.read(engine, driver, []).job
    return job and job.number


def open_window(engine: Engine, number: int, holder: Holder) -> lease.Lease:
    [window_lease] = lease.acquire(engine, [lease.window_lease(TABLE)], holder, 30)
    windows.request(engine, number, TABLE, window_lease.epoch)
    windows.open_(engine, number, SIZE)
    return window_lease


def test_a_driver_that_is_not_alive_is_not_asked_for_a_window(engine, number):
    assert not request_window(engine, number)
    assert requested_window(engine) is None


def test_only_the_driver_that_is_asked_reads_the_request(engine, live, number):
    assert request_window(engine, number)
    assert (requested_window(engine), requested_window(engine, "side")) == (number, None)


def test_a_window_that_a_driver_has_begun_is_withdrawn_by_nobody_who_waits_and_begun_by_no_other(engine, live, number):
    other, window = windows.plan(engine, TABLE, "a test", "more small files", True), job_id.window(number)
    for asked in (number, number, other):
        request_window(engine, asked)
    assert claim(engine, window)
    assert not queue.withdraw_unbegun(engine, window)
    with pytest.raises(FlowFailed, match=r"do it in a process of its own, spark-submit jobs/maintain\.py"):
        claim(engine, window)
    queue.withdraw(engine, window)
    assert (all_kinds.status(engine, job_id.window(number)).is_in_hand, requested_window(engine)) == (False, other)
    assert queue.withdraw_unbegun(engine, job_id.window(other))
    assert [requested_window(engine), claim(engine, job_id.window(other))] == [None, False]


def test_a_window_is_done_before_a_backfill(engine, live, number):
    request_backfill(engine)
    request_window(engine, number)
    assert orders.read(engine, DRIVER, []).job == job_id.window(number)


def test_the_next_driver_reads_what_one_hands_back(engine, live, number):
    request_window(engine, number)
    claim(engine, job_id.window(number))
    queue.hand_back(engine, job_id.window(number))
    queue.hand_back(engine, job_id.window(number))
    assert requested_window(engine) == number
    assert claim(engine, job_id.window(number))


def test_the_requester_reads_each_step_until_the_end(engine, live, number, holder):
    assert all_kinds.status(engine, job_id.window(number + 1)).failure == f"nobody planned window {number + 1}"
    request_window(engine, number)
    status = all_kinds.status(engine, job_id.window(number))
    assert (status.message, status.is_in_hand) == ("driver 'main' is asked to do it", True)
    claim(engine, job_id.window(number))
    status = all_kinds.status(engine, job_id.window(number))
    assert (status.message, status.is_in_hand, status.is_done) == ("the next driver goes on with it", False, False)
    open_window(engine, number, holder())
    assert all_kinds.status(engine, job_id.window(number)).message == f"{TABLE}: open"
    windows.begin_step(engine, number, "optimize")
    status = all_kinds.status(engine, job_id.window(number))
    assert (status.message, status.is_in_hand, status.failure) == (f"{TABLE}: optimize", True, None)
    windows.close(engine, number, SIZE)
    status = all_kinds.status(engine, job_id.window(number))
    assert (status.message, status.is_done, status.failure) == ("it is done", True, None)


def test_a_window_that_failed_is_done_and_one_whose_driver_died_has_failed(engine, live, number, holder):
    window_lease = open_window(engine, number, holder())
    lease.release(engine, [window_lease])
    status = all_kinds.status(engine, job_id.window(number))
    assert (status.is_done, status.failure) == (False, "many small files; its job died")
    assert store.get(engine, Window, number).state == "failed"
    windows.close_unfinished(engine, number, "failed", "it took too long")
    status = all_kinds.status(engine, job_id.window(number))
    assert (status.message, status.is_done, status.failure) == ("it is failed", True, None)


def test_the_lease_of_a_later_window_does_not_keep_an_earlier_one_open(engine, number, holder):
    lease.release(engine, [open_window(engine, number, holder())])
    later = windows.plan(engine, TABLE, "a test", "again", True)
    [window_lease] = lease.acquire(engine, [lease.window_lease(TABLE)], holder(), 30)
    assert store.get(engine, Window, number).state == "failed"
    windows.request(engine, later, TABLE, window_lease.epoch)
    assert [window.state for window in store.newest(engine, Window, TABLE)] == ["asked", "failed"]


@pytest.mark.parametrize("kind", ["window", "backfill"])
def test_a_driver_that_does_not_begin_in_time_or_died_has_nothing_in_hand(engine, live, number, kind):
    asked = JobId(kind, request_backfill(engine) if kind == "backfill" else number)
    request_window(engine, number)
    with database.transaction(engine) as connection:
        long_ago = database.now(connection) - queue.CLAIM_TIMEOUT_SECONDS - 1
        connection.execute(update(jobs).values(asked_at=long_ago))
    assert not all_kinds.status(engine, asked).is_in_hand
    with database.transaction(engine) as connection:
        connection.execute(update(jobs).values(asked_at=database.now(connection)))
    assert all_kinds.status(engine, asked).is_in_hand
    lease.release(engine, [live])
    assert not all_kinds.status(engine, asked).is_in_hand
