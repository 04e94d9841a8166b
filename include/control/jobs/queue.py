"""Jobs that a running driver is asked to do. Its JVM is warm: a process of its own takes longer than most jobs.

A request is stored until a driver has reported how the job ended, so the next driver goes on with the job of a driver
that died.
"""

from dataclasses import dataclass

from sqlalchemy import Column, ColumnElement, Connection, Engine, Table, delete, func, select, update

from include.control import lease
from include.control.jobs.job_id import JobId, JobKind
from include.control.store import database
from include.control.store.job_schema import requests
from include.control.store.schema import window_requests
from include.errors import FlowFailed

# A driver asks for them in this order: a window is shorter than a backfill.
STORED: dict[JobKind, tuple[Table, Column[int]]] = {
    JobKind.WINDOW: (window_requests, window_requests.c.number),
    JobKind.BACKFILL: (requests, requests.c.root),
}
# A job that ended this many drivers may have caused that, and each time their streams stop.
TRIES = {JobKind.WINDOW: 1, JobKind.BACKFILL: 2}
# A driver that has not begun after this time is too busy.
CLAIM_TIMEOUT_SECONDS = 300


@dataclass(frozen=True)
class JobStatus:
    """The progress of a job that a driver was asked for.

    message: the progress in words. is_done: complete, with all tables below it. is_in_hand: a job or driver executes
    it, or its driver is about to. failure: why it failed.
    """

    message: str
    is_done: bool = False
    is_in_hand: bool = False
    failure: str | None = None


def request(engine: Engine, job: JobId, driver: str) -> bool:
    """Request a planned job from a driver. Returns False if the driver is not alive. Raises Unreachable."""
    table, number = STORED[job.kind]
    with database.transaction(engine) as connection:
        if lease.driver_lease(driver) not in lease.alive(connection):
            return False
        values = {number.name: job.number, "driver": driver, "asked_at": database.now(connection), "tries": 0}
        connection.execute(database.insert(connection, table).values(values).on_conflict_do_nothing())
    return True


def oldest(connection: Connection, driver: str) -> JobId | None:
    """The job that the driver is to do next."""
    for kind, (table, number) in STORED.items():
        first = select(number).where(table.c.driver == driver).order_by(table.c.asked_at, number).limit(1)
        if (found := connection.execute(first).scalar_one_or_none()) is not None:
            return JobId(kind, found)
    return None


def claim(engine: Engine, job: JobId) -> bool:
    """Count a try of the driver. Returns False if the request was withdrawn.

    Raises FlowFailed if too many drivers have ended during this job, and Unreachable.
    """
    table, number = STORED[job.kind]
    with database.transaction(engine) as connection:
        begun = select(func.coalesce(table.c.tries, 0)).where(number == job.number)
        tries = connection.execute(begun.with_for_update()).scalar_one_or_none()
        if tries is None:
            return False
        if tries >= TRIES[job.kind]:
            raise FlowFailed(
                f"{job}: it was begun inside a driver and not completed (tries: {tries}), and may have ended that "
                f"driver: do it in a process of its own, {job.kind.command}"
            )
        connection.execute(update(table).where(number == job.number).values(tries=tries + 1))
    return True


def withdraw(engine: Engine, job: JobId) -> None:
    """Withdraw the request: the job has ended, or another process will do it. Raises Unreachable."""
    table, number = STORED[job.kind]
    with database.transaction(engine) as connection:
        connection.execute(delete(table).where(number == job.number))


def withdraw_unbegun(engine: Engine, job: JobId) -> bool:
    """Withdraw the request unless a driver has begun the job. Returns whether it was withdrawn. Raises Unreachable."""
    table, number = STORED[job.kind]
    with database.transaction(engine) as connection:
        return connection.execute(delete(table).where(_is_unbegun(table, number, job))).rowcount == 1


def hand_back(engine: Engine, job: JobId) -> None:
    """Return the request for the next driver, because this one ends before the job is done. Raises Unreachable."""
    table, number = STORED[job.kind]
    with database.transaction(engine) as connection:
        connection.execute(update(table).where(number == job.number).values(tries=0))


def waiting(connection: Connection, job: JobId) -> JobStatus | None:
    """What an unbegun job waits for; None if no driver is asked for it, or a driver has begun it."""
    table, number = STORED[job.kind]
    asked = connection.execute(select(table).where(_is_unbegun(table, number, job))).one_or_none()
    if asked is None:
        return None
    is_alive = lease.driver_lease(asked.driver) in lease.alive(connection)
    if any(_has_begun(connection, asked.driver, requested) for requested, _ in STORED.values()):
        return JobStatus(f"driver '{asked.driver}' does another one first", is_in_hand=is_alive)
    is_recent = database.now(connection) - asked.asked_at < CLAIM_TIMEOUT_SECONDS
    return JobStatus(f"driver '{asked.driver}' is asked to do it", is_in_hand=is_alive and is_recent)


def _is_unbegun(table: Table, number: Column[int], job: JobId) -> ColumnElement[bool]:
    return (number == job.number) & (func.coalesce(table.c.tries, 0) == 0)


def _has_begun(connection: Connection, driver: str, table: Table) -> bool:
    begun = select(table.c.driver).where(table.c.driver == driver, table.c.tries > 0)
    return connection.execute(begun).first() is not None
