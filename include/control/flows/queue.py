"""Jobs that a running driver is asked to do. Its JVM is warm: a process of its own takes longer than most jobs.

A request is stored until a driver has reported how the job ended, so the next driver goes on with the job of a driver
that died.
"""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Engine, select, update

from include.control.leases import lease
from include.control.store import database, job_events
from include.control.store.job_events import Event
from include.control.store.job_id import JobId, JobKind
from include.control.store.job_schema import jobs
from include.errors import FlowFailed

# A driver that has not begun after this time is too busy.
CLAIM_TIMEOUT_SECONDS = 300
_WITHDRAWN = {"driver": None, "asked_at": None, "tries": None}


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
    with database.transaction(engine) as connection:
        if lease.driver_lease(driver) not in lease.alive(connection):
            return False
        values = {"driver": driver, "asked_at": database.now(connection), "tries": 0}
        if connection.execute(update(jobs).where(is_job(job), jobs.c.driver.is_(None)).values(values)).rowcount:
            job_events.record(connection, job, Event.REQUESTED, details=driver)
    return True


def oldest(connection: Connection, driver: str) -> JobId | None:
    """The job that the driver is to do next. A window comes first: it is shorter than others."""
    order = jobs.c.kind != JobKind.WINDOW, jobs.c.asked_at, jobs.c.number
    row = connection.execute(select(jobs).where(jobs.c.driver == driver).order_by(*order).limit(1)).one_or_none()
    return JobId(row.kind, row.number) if row else None


def claim(engine: Engine, job: JobId, most_tries: int = 1, command: str = "") -> bool:
    """Count a try of the driver. Returns False if the request was withdrawn.

    most_tries: a job that ended this many drivers may have caused that, and each time their streams stop. command: does
    the job in a process of its own. Raises FlowFailed if too many drivers have ended during this job, and Unreachable.
    """
    with database.transaction(engine) as connection:
        begun = select(jobs.c.tries).where(is_job(job), jobs.c.driver.is_not(None))
        tries = connection.execute(begun.with_for_update()).scalar_one_or_none()
        if tries is None:
            return False
        if tries >= most_tries:
            raise FlowFailed(
                f"{job}: it was begun inside a driver and not completed (tries: {tries}), and may have ended that "
                f"driver: do it in a process of its own, {command}"
            )
        connection.execute(update(jobs).where(is_job(job)).values(tries=tries + 1))
        job_events.record(connection, job, Event.BEGUN)
    return True


def withdraw(engine: Engine, job: JobId) -> None:
    """Withdraw the request: the job has ended, or another process will do it. Raises Unreachable."""
    with database.transaction(engine) as connection:
        connection.execute(update(jobs).where(is_job(job)).values(_WITHDRAWN))


def withdraw_unbegun(engine: Engine, job: JobId) -> bool:
    """Withdraw the request unless a driver has begun the job. Returns whether it was withdrawn. Raises Unreachable."""
    with database.transaction(engine) as connection:
        return connection.execute(update(jobs).where(is_job(job), _is_unbegun()).values(_WITHDRAWN)).rowcount == 1


def hand_back(engine: Engine, job: JobId) -> None:
    """Return the request for the next driver, because this one ends before the job is done. Raises Unreachable."""
    with database.transaction(engine) as connection:
        is_requested = is_job(job) & jobs.c.driver.is_not(None)
        if connection.execute(update(jobs).where(is_requested).values(tries=0)).rowcount:
            job_events.record(connection, job, Event.HANDED_BACK)


def waiting(connection: Connection, job: JobId) -> JobStatus | None:
    """What an unbegun job waits for; None if no driver is asked for it, or a driver has begun it."""
    asked = connection.execute(select(jobs).where(is_job(job), _is_unbegun())).one_or_none()
    if asked is None:
        return None
    is_alive = lease.driver_lease(asked.driver) in lease.alive(connection)
    begun = select(jobs.c.number).where(jobs.c.driver == asked.driver, jobs.c.tries > 0)
    if connection.execute(begun).first():
        return JobStatus(f"driver '{asked.driver}' does another one first", is_in_hand=is_alive)
    is_recent = database.now(connection) - asked.asked_at < CLAIM_TIMEOUT_SECONDS
    return JobStatus(f"driver '{asked.driver}' is asked to do it", is_in_hand=is_alive and is_recent)


def is_job(job: JobId) -> ColumnElement[bool]:
    """The condition for the row of one job."""
    return (jobs.c.kind == job.kind) & (jobs.c.number == job.number)


def _is_unbegun() -> ColumnElement[bool]:
    return jobs.c.driver.is_not(None) & (jobs.c.tries == 0)
