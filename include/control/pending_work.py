"""What is asked for and not done yet, what was refused of late, and the jobs that are under way."""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine, func, select

from include.control import schedule
from include.control.flows import orders, sizing
from include.control.jobs import store
from include.control.jobs.store import PLANNED, StoredJob
from include.control.leases import lease
from include.control.store import database
from include.control.store.job_id import JobKind
from include.control.store.job_schema import jobs
from include.control.store.schema import audits, drivers, resets

# Whoever looks now may have given the command that was refused.
REFUSED_SECONDS = 3600
# Nobody approves a job that was planned longer ago: its task in Airflow has ended.
APPROVAL_SECONDS = 86_400
ROUTINE = (sizing.REQUESTER, schedule.REQUESTER)
# A refresh that failed is over once another one of its view was planned.
RENEWED = frozenset({JobKind.REFRESH, JobKind.REPLAY})


class Stage(StrEnum):
    """WAITING: nobody has begun it. AT_WORK: a process does it. FAILED: it is unfinished, and nobody does it. REFUSED:
    a command that had no effect.
    """

    WAITING = "waiting"
    AT_WORK = "at work"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True)
class Work:
    """subject: what does it, or what is to do it: a job, a flow or a driver. target: its table, flow or driver. since:
    in seconds since 1970. details: in words.
    """

    subject: str
    target: str
    stage: Stage
    since: float
    who: str
    details: str

    @property
    def words(self) -> str:
        """One line for people."""
        return f"{self.subject} of {self.target} {self.stage}, by {self.who}: {self.details}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def read(engine: Engine) -> list[Work]:
    """Everything, oldest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        found = [*_jobs(connection), *_restarts(connection), *_resets(connection), *_refused(connection)]
    return sorted(found, key=lambda work: work.since)


def failed_jobs(connection: Connection) -> list[StoredJob]:
    """The unfinished jobs that have begun, and that nobody does or may soon try again.

    A window has an alarm of its own.
    """
    failed = [job for job in _unfinished(connection) if _stage(job) is Stage.FAILED and job.kind != JobKind.WINDOW]
    return [job for job in failed if not store.may_be_tried_again(connection, job)]


def _unfinished(connection: Connection) -> list[StoredJob]:
    unfinished = store.of_all_kinds(connection, jobs.c.ended_at.is_(None))
    newest = {(job.kind, job.table): job.number for job in unfinished}
    renewed = select(jobs.c.kind, jobs.c.target, func.max(jobs.c.number).label("number"))
    is_listed = jobs.c.kind.in_(RENEWED) & jobs.c.target.in_([job.table for job in unfinished])
    for row in connection.execute(renewed.where(is_listed).group_by(jobs.c.kind, jobs.c.target)):
        newest[row.kind, row.target] = row.number
    return [job for job in unfinished if job.kind not in RENEWED or job.number == newest[job.kind, job.table]]


def _stage(job: StoredJob) -> Stage:
    if job.is_at_work:
        return Stage.AT_WORK
    if job.is_held or (job.state == PLANNED and job.failure is None):
        return Stage.WAITING
    return Stage.FAILED


def _jobs(connection: Connection) -> list[Work]:
    now = database.now(connection)
    return [
        Work(str(job.id), job.table, stage, job.state_at, job.who, job.failure or job.message or job.reason)
        for job in _unfinished(connection)
        for stage in [_stage(job)]
        if stage is not Stage.WAITING or job.is_held or now - job.planned_at < APPROVAL_SECONDS
    ]


def _restarts(connection: Connection) -> list[Work]:
    return [
        Work("restart", f"driver {row.driver}", Stage.WAITING, row.ends_at, "on-call", "ends after the current batches")
        for row in connection.execute(select(drivers).where(drivers.c.ends_at.is_not(None)))
        if orders.is_restart_due(row, lease.epoch(connection, lease.driver_lease(row.driver)))
    ]


def _resets(connection: Connection) -> list[Work]:
    now = database.now(connection)
    return [
        Work("reset checkpoint", row.flow, Stage.WAITING, now, row.who, row.reason)
        for row in connection.execute(select(resets))
    ]


def _refused(connection: Connection) -> list[Work]:
    """Commands of people that had no effect."""
    since = database.now(connection) - REFUSED_SECONDS
    recent = (audits.c.at > since) & audits.c.has_effect.is_(False) & audits.c.who.not_in(ROUTINE)
    return [
        Work(row.action, row.target, Stage.REFUSED, row.at, row.who, row.result)
        for row in connection.execute(select(audits).where(recent))
    ]
