"""Requests for backfills that a running driver executes. Starting a separate process takes longer than most backfills.

A request is stored until a driver has reported how its backfill ended, so the next driver resumes the backfill of a
driver that died.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, delete, select, update

from include.control import lease
from include.control.jobs import backfills, give_up
from include.control.jobs.backfills import Backfill
from include.control.store import database
from include.control.store.job_schema import backfills as backfill_table
from include.control.store.job_schema import requests
from include.errors import FlowFailed
from include.project.ranges import Slice

# A backfill that ended this many drivers may have caused that, and each time their streams stop.
TRIES = 2


@dataclass(frozen=True)
class RequestStatus:
    """The progress of a backfill or window that a driver was asked for.

    message: the progress in words. is_done: complete, with all tables below it. is_in_hand: a job or driver executes
    it, or its driver executes another one first. failure: why it failed.
    """

    message: str
    is_done: bool = False
    is_in_hand: bool = False
    failure: str | None = None


def request(engine: Engine, table: str, range_: Slice, requester: str, driver: str) -> int | None:
    """Request a backfill from a driver, and return its number. An equal request that no driver has started is reused.

    Returns None, and stores nothing, if the driver is not alive. Raises UsageError if this run's backfill was given up,
    and Unreachable.
    """
    with database.reading(engine) as connection:
        if lease.driver_lease(driver) not in lease.alive(connection):
            return None
        unstarted = _find_unstarted(connection, table, range_)
    give_up.require_not_given_up(engine, table, range_, requester)
    number = unstarted or backfills.begin(engine, table, range_, requester).number
    with database.transaction(engine) as connection:
        values = {"driver": driver, "asked_at": database.now(connection), "tries": 0}
        statement = database.insert(connection, requests).values(root=number, **values)
        connection.execute(statement.on_conflict_do_nothing())
        is_planned = (backfill_table.c.number == number) & (backfill_table.c.phase == backfills.PLANNED)
        connection.execute(update(backfill_table).where(is_planned).values(said=f"driver '{driver}' is asked to do it"))
    return number


def _find_unstarted(connection: Connection, table: str, range_: Slice) -> int | None:
    """The number of the backfill of the same table and range, if it is requested and no driver has started it."""
    begins, ends = range_.texts
    is_same_range = (
        (backfill_table.c.target == table)
        & backfill_table.c.begins.is_not_distinct_from(begins)
        & backfill_table.c.ends.is_not_distinct_from(ends)
    )
    requested = select(backfill_table.c.number).join(requests, requests.c.root == backfill_table.c.number)
    return connection.execute(requested.where(is_same_range, requests.c.tries == 0)).scalars().first()


def claim(engine: Engine, root: int) -> Backfill | None:
    """Count a try, and return the backfill for the driver to execute. Returns None if the request was withdrawn.

    Raises FlowFailed if too many drivers have ended during this backfill, and Unreachable.
    """
    with database.transaction(engine) as connection:
        is_requested = requests.c.root == root
        tries = connection.execute(select(requests.c.tries).where(is_requested).with_for_update()).scalar_one_or_none()
        if tries is None:
            return None
        if tries >= TRIES:
            raise FlowFailed(
                f"backfill {root}: {tries} tries inside a driver came to no end, which it may be the reason for: do it "
                f"in a process of its own, spark-submit jobs/backfill.py"
            )
        connection.execute(update(requests).where(is_requested).values(tries=tries + 1))
    return backfills.find(engine, root)


def withdraw(engine: Engine, root: int) -> None:
    """Withdraw the request: the backfill is done, or another process will do it. Raises Unreachable."""
    with database.transaction(engine) as connection:
        connection.execute(delete(requests).where(requests.c.root == root))


def hand_back(engine: Engine, root: int) -> None:
    """Return the request for the next driver, because this one ends before the backfill is done. Raises Unreachable."""
    with database.transaction(engine) as connection:
        connection.execute(update(requests).where(requests.c.root == root).values(tries=0))


def fail(engine: Engine, root: int, failure: str) -> None:
    """Withdraw the request. Store the failure unless another job has taken over the backfill. Raises Unreachable."""
    with database.transaction(engine) as connection:
        connection.execute(delete(requests).where(requests.c.root == root))
        if backfills.lease_name(root) not in lease.alive(connection):
            is_unfinished = (backfill_table.c.root == root) & backfill_table.c.ended_at.is_(None)
            connection.execute(update(backfill_table).where(is_unfinished).values(failure=failure))


def status(engine: Engine, root: int) -> RequestStatus:
    """The status of a requested backfill, for the task that waits for it. Raises Unreachable."""
    # Read requests before backfills: a driver completes its work first and withdraws the request afterwards.
    with database.reading(engine) as connection:
        request = connection.execute(select(requests).where(requests.c.root == root)).one_or_none()
        holders = lease.alive(connection)
        busy_drivers = {
            row.driver for row in connection.execute(select(requests)) if backfills.lease_name(row.root) in holders
        }
    unfinished = backfills.unfinished_of(engine, root)
    if not unfinished:
        is_given_up = backfills.find(engine, root).phase == backfills.GIVEN_UP
        message = "it was given up" if is_given_up else "it is done"
        return RequestStatus(message, is_done=not is_given_up, failure=message if is_given_up else None)
    latest = max(unfinished, key=lambda backfill: backfill.phase_at)
    if backfills.lease_name(root) in holders:
        return RequestStatus(f"{latest.table}: {latest.phase}: {latest.message}", is_in_hand=True)
    if request is None:
        return RequestStatus("no driver is asked for it", failure=latest.failure)
    if request.driver in busy_drivers:
        return RequestStatus(f"driver '{request.driver}' does another one first", is_in_hand=True)
    return RequestStatus(f"driver '{request.driver}' is asked to do it")
