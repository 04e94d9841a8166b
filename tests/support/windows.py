"""Sets the times of a window, which otherwise are those of the test."""

from sqlalchemy import Engine, delete, update

from include.control.jobs import store
from include.control.jobs.windows import OPEN
from include.control.store import database, job_id
from include.control.store.job_schema import job_events


def set_times(engine: Engine, number: int, opened_at: float | None, closed_at: float | None) -> None:
    """In seconds since 1970. None: never."""
    is_opening = (job_events.c.number == number) & (job_events.c.event == OPEN)
    with database.transaction(engine) as connection:
        store.update_job(connection, job_id.window(number), ended_at=closed_at)
        if opened_at is None:
            connection.execute(delete(job_events).where(is_opening))
        else:
            connection.execute(update(job_events).where(is_opening).values(at=opened_at))
