"""The jobs of all kinds together: one list, and one status for whoever waits for a job."""

from typing import Any

from sqlalchemy import Connection, Engine, Row, select

from include.control.flows import queue
from include.control.flows.queue import JobStatus, is_job
from include.control.jobs import store
from include.control.jobs.backfills import Backfill
from include.control.jobs.rewinds import Rewind
from include.control.jobs.store import FAILED, GIVEN_UP, StoredJob
from include.control.jobs.windows import Window
from include.control.store import database
from include.control.store.job_id import JobId, JobKind
from include.control.store.job_schema import jobs
from include.errors import UsageError

# Jobs of other kinds have nothing of their own here.
_OF_KIND: dict[str, type[StoredJob]] = {kind.KIND: kind for kind in (Window, Backfill, Rewind)}


def newest(engine: Engine, kind: str | None = None, table: str | None = None, limit: int = 50) -> list[StoredJob]:
    """The newest jobs, newest first. Parameters: as for `store.select_newest`; kind: None: all.

    Raises UsageError for a kind of which nothing is known here, and no job is stored, and Unreachable.
    """
    with database.reading(engine) as connection:
        others = select(jobs.c.kind).where(jobs.c.kind.not_in(JobKind)).distinct().order_by(jobs.c.kind)
        kinds = [*map(str, JobKind), *connection.execute(others).scalars()]
        if kind and kind not in kinds:
            raise UsageError(f"--kind: {kind!r} is not one of {', '.join(map(repr, kinds))}: name one of these")
        # One query of each kind: windows outnumber all others.
        listed = [kind] if kind else kinds
        rows = [row for name in listed for row in store.select_newest(connection, name, table, limit)]
        rows.sort(key=lambda row: (row.planned_at, row.number), reverse=True)
        return [_of(connection, row) for row in rows[:limit]]


def unfinished(engine: Engine) -> list[StoredJob]:
    """The jobs that are not over, of all kinds. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(jobs).where(jobs.c.ended_at.is_(None)).order_by(jobs.c.kind, jobs.c.number))
        return [_of(connection, row) for row in rows.all()]


def status(engine: Engine, job: JobId) -> JobStatus:
    """The status of a requested job, for the task that waits for it. Raises Unreachable.

    A driver completes its work first and withdraws the request afterwards.
    """
    with database.reading(engine) as connection:
        root = connection.execute(select(jobs).where(is_job(job))).one_or_none()
        is_part = (jobs.c.kind == job.kind) & (jobs.c.root == job.number) & jobs.c.ended_at.is_(None)
        unfinished = [_of(connection, row) for row in connection.execute(select(jobs).where(is_part)).all()]
        waits = queue.waiting(connection, job)
    if root is None:
        return JobStatus("it was never planned", failure=f"nobody planned {job}")
    if not unfinished:
        is_given_up = root.state == GIVEN_UP
        message = "it was given up" if is_given_up else f"it is {root.state}"
        return JobStatus(message, is_done=not is_given_up, failure=message if is_given_up else None)
    latest = max(unfinished, key=lambda part: part.state_at)
    if latest.state == FAILED:
        return JobStatus("its driver died", failure=latest.reason)
    if latest.is_at_work:
        return JobStatus(latest.progress, is_in_hand=True)
    if waits:
        return waits
    if root.driver:
        return JobStatus("the next driver goes on with it")
    return JobStatus("no driver is asked for it", failure=latest.failure)


def _of(connection: Connection, row: Row[Any]) -> StoredJob:
    return _OF_KIND.get(row.kind, StoredJob).of(connection, row)
