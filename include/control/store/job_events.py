"""What happened to a job, and when: the states that it entered, and what people and drivers did with it."""

from enum import StrEnum

from sqlalchemy import Connection, func, insert, select

from include.control.store import database
from include.control.store.job_id import JobId
from include.control.store.job_schema import job_events


class Event(StrEnum):
    """The events of all kinds that are no states."""

    APPROVED = "approved"
    REQUESTED = "requested of a driver"
    BEGUN = "begun by a driver"
    HANDED_BACK = "handed back by a driver"
    TRY_FAILED = "try failed"
    PAUSED = "flows paused"


def record(connection: Connection, job: JobId, event: str, who: str | None = None, details: str | None = None) -> None:
    """Store an event. event: an `Event`, or a state. who: None: the job itself. details: in words."""
    values = {"kind": job.kind, "number": job.number, "event": event, "who": who, "details": details}
    connection.execute(insert(job_events).values(**values, at=database.now(connection)))


def newest_times(connection: Connection, job: JobId) -> dict[str, float]:
    """By event, when it last happened, in seconds since 1970."""
    is_of = (job_events.c.kind == job.kind) & (job_events.c.number == job.number)
    newest = select(job_events.c.event, func.max(job_events.c.at).label("newest_at")).where(is_of)
    return {row.event: row.newest_at for row in connection.execute(newest.group_by(job_events.c.event))}
