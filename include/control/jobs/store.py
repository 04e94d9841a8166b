"""The stored jobs of all kinds: each has one row, from which the next try completes the job of a process that died."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Row, func, insert, or_, select, update

from include import logs
from include.control.flows import queue
from include.control.flows.queue import is_job
from include.control.jobs import held_flows
from include.control.leases import lease
from include.control.store import audit, database, job_events
from include.control.store.job_events import Event
from include.control.store.job_id import JobId, JobKind
from include.control.store.job_schema import jobs
from include.control.store.schema import leases
from include.errors import SluiceError, UsageError

# The states that all kinds know. A kind has others between the first and the last one.
PLANNED, SKIPPED, DONE, FAILED, GIVEN_UP = "planned", "skipped", "done", "failed", "given up"
# Airflow tries a job again a minute after a try has failed, and a busy machine takes its time to start that.
AGAIN_SECONDS = 180.0
# The requester outside Airflow. A repeated command is a new request there, not the retry of a run.
BY_HAND = "by hand"
Kind = TypeVar("Kind", bound="StoredJob")


@dataclass(frozen=True)
class StoredJob:
    """A job of any kind. A kind that needs more than this is a subclass, named by KIND: see `all_kinds`.

    number: among the jobs of its kind. root: the number of the requested job, possibly this one. state: PLANNED at
    first, DONE, FAILED or GIVEN_UP at last. reason, message, failure: in words. stopped: the flows it has stopped, each
    with the state and reason wanted before. parameters, outcome: what its kind keeps. is_at_work: a process holds its
    lease. is_held: that, or the driver that is asked for it is alive. Times are seconds since 1970 by the control
    database's clock.
    """

    KIND: ClassVar[str] = ""

    kind: str
    number: int
    root: int
    table: str
    state: str
    who: str
    reason: str
    message: str
    failure: str | None
    stopped: dict[str, tuple[str, str]]
    parameters: dict[str, Any]
    outcome: dict[str, Any]
    planned_at: float
    state_at: float
    ended_at: float | None
    is_at_work: bool
    is_held: bool

    @classmethod
    def of(cls, connection: Connection, row: Row[Any]) -> Self:
        """The job of a row. A subclass adds what other tables know of it."""
        # Who is alive takes long to find out, and matters to unfinished jobs only.
        alive = {} if row.ended_at is not None else lease.alive(connection)
        name = _lease_name(row.kind, row.target, row.root)
        is_at_work = name in alive and row.epoch in (None, lease.epoch(connection, name))
        root = select(jobs.c.driver).where(is_job(JobId(row.kind, row.root)))
        driver = connection.execute(root).scalar_one_or_none()
        return cls(
            **{name: row._mapping[name] for name in ("kind", "number", "root", "state", "who", "reason", "message")},
            **{name: row._mapping[name] for name in ("failure", "planned_at", "state_at", "ended_at")},
            table=row.target,
            stopped=held_flows.parse(row.stopped),
            parameters=json.loads(row.parameters or "{}"),
            outcome=json.loads(row.outcome or "{}"),
            is_at_work=is_at_work,
            is_held=is_at_work or (driver is not None and lease.driver_lease(driver) in alive),
        )

    @property
    def id(self) -> JobId:
        return JobId(self.kind, self.number)

    @property
    def is_abandoned(self) -> bool:
        """Whether it is unfinished and no live job or driver executes it."""
        return self.ended_at is None and not self.is_held

    @property
    def progress(self) -> str:
        """What it does now, in words."""
        return f"{self.table}: {self.state}: {self.message}"


def insert_job(
    connection: Connection,
    kind: str,
    table: str,
    requester: str,
    *,
    reason: str = "",
    message: str = "",
    root: int | None = None,
    skipped: bool = False,
    parameters: Mapping[str, Any] | None = None,
) -> int:
    """Store a new job, and return its number. root: of the job that made it necessary; None: it was requested.

    skipped: it is not worth it, and over.
    """
    # Two transactions must not choose the same number.
    database.serialize(connection, "job numbers")
    newest_number = select(func.coalesce(func.max(jobs.c.number), 0)).where(jobs.c.kind == kind)
    number, now = int(connection.execute(newest_number).scalar_one()) + 1, database.now(connection)
    state, ended_at = (SKIPPED, now) if skipped else (PLANNED, None)
    values = {"kind": kind, "number": number, "root": root or number, "target": table, "state": state, "who": requester}
    values |= {"reason": reason, "message": message, "planned_at": now, "state_at": now, "ended_at": ended_at}
    connection.execute(insert(jobs).values(**values, parameters=json.dumps(parameters) if parameters else None))
    return number


def plan(engine: Engine, kind: type[Kind], table: str, requester: str, **values: Any) -> Kind:
    """Store a new job, which begins later. values: as for `insert_job`. Raises Unreachable."""
    with database.transaction(engine) as connection:
        return read(connection, kind, insert_job(connection, kind.KIND, table, requester, **values))


def begin(
    engine: Engine, kind: str, table: str, requester: str, *conditions: ColumnElement[bool], **values: Any
) -> JobId:
    """Store a new job, or return the unfinished one of the same request, whose process died or failed.

    conditions: of the same request, besides its kind, table and requester. values: as for `insert_job`.
    Raises UsageError if this run's job was given up: a retry must not begin it again. Raises Unreachable.
    """
    with database.transaction(engine) as connection:
        is_same = [jobs.c.kind == kind, jobs.c.target == table, jobs.c.who == requester, *conditions]
        if unfinished := of_all_kinds(connection, *is_same, jobs.c.ended_at.is_(None)):
            return unfinished[0].id
        given_up = select(jobs.c.number).where(*is_same, jobs.c.state == GIVEN_UP)
        if requester != BY_HAND and (number := connection.execute(given_up).scalar()):
            raise UsageError(given_up_words(table, JobId(kind, number), requester))
        return JobId(kind, insert_job(connection, kind, table, requester, **values))


def unfinished(engine: Engine, kind: str, table: str, requester: str) -> list[StoredJob]:
    """The unfinished jobs of one request. Raises Unreachable."""
    with database.reading(engine) as connection:
        is_same = (jobs.c.kind == kind) & (jobs.c.target == table) & (jobs.c.who == requester)
        return of_all_kinds(connection, is_same, jobs.c.ended_at.is_(None))


def given_up_words(what: str, job: JobId, requester: str) -> str:
    """Why a retry of a run does not begin its job again. what: the table, with its range."""
    return f"{what}: {job} of run '{requester}' was given up: trigger another run"


def update_job(connection: Connection, job: JobId, **values: Any) -> None:
    """Change columns of a job's row."""
    connection.execute(update(jobs).where(is_job(job)).values(values))


def set_state(connection: Connection, job: JobId, state: str, **values: Any) -> None:
    """Store that the job enters a state, and other columns. The failure of an earlier try is over."""
    now = database.now(connection)
    update_job(connection, job, **{"failure": None, "state": state, "state_at": now, **values})
    job_events.record(connection, job, state, details=values.get("failure") or values.get("message"))


def enter(engine: Engine, job: StoredJob, state: str, message: str) -> None:
    """Store the state that a job enters and a progress message, and log them. Raises Unreachable."""
    logs.info(f"{job.id}: {state}: {message}")
    with database.transaction(engine) as connection:
        set_state(connection, job.id, state, message=message)


def show(engine: Engine, job: StoredJob, message: str) -> None:
    """Store how far a job is within its state, in words, and log it. Raises Unreachable."""
    logs.info(f"{job.id}: {message}")
    with database.transaction(engine) as connection:
        # Somebody may have given it up.
        is_unfinished = is_job(job.id) & jobs.c.ended_at.is_(None)
        connection.execute(update(jobs).where(is_unfinished).values(message=message))


def end(
    connection: Connection, job: StoredJob, state: str, message: str, failure: str | None = None, **values: Any
) -> list[str]:
    """Store that the job is over, and restore what was wanted of its flows. Returns the names of these."""
    flows = held_flows.resume(connection, job.id, job.who)
    now = database.now(connection)
    set_state(connection, job.id, state, message=message, failure=failure, ended_at=now, **values)
    return flows


def finish(engine: Engine, job: StoredJob, message: str) -> None:
    """Store that nothing of a job is left. message: what it did, in words. Raises Unreachable."""
    with database.transaction(engine) as connection:
        end(connection, job, DONE, message)


def give_up(engine: Engine, job: StoredJob, message: str) -> None:
    """Store that a job is given up, and restore what was wanted of its flows. Raises Unreachable."""
    with database.transaction(engine) as connection:
        end(connection, job, GIVEN_UP, message)
        audit.record(connection, job.who, job.kind, job.table, job.reason, f"{GIVEN_UP}: {message}")


def record_failure(engine: Engine, job: StoredJob, failure: str, resumes_flows: bool = False) -> None:
    """Store why a try failed. resumes_flows: restore what was wanted of its flows, too. Raises Unreachable.

    Otherwise the flows stay stopped until a retry succeeds.
    """
    with database.transaction(engine) as connection:
        if resumes_flows:
            held_flows.resume(connection, job.id, job.who)
        update_job(connection, job.id, failure=failure)
        job_events.record(connection, job.id, Event.TRY_FAILED, details=failure)


@contextmanager
def failure_recorded(engine: Engine, job: StoredJob) -> Iterator[None]:
    """Stores why a try failed. Raises what the block raises."""
    try:
        yield
    except SluiceError as error:
        with suppress(SluiceError):
            record_failure(engine, job, str(error))
        raise


def fail_request(engine: Engine, job: JobId, failure: str) -> None:
    """Store the failure unless another process has taken over the job. Withdraw the request. Raises Unreachable."""
    with database.transaction(engine) as connection:
        is_part = (jobs.c.kind == job.kind) & (jobs.c.root == job.number) & jobs.c.ended_at.is_(None)
        for part in of_all_kinds(connection, is_part):
            if not part.is_at_work:
                update_job(connection, part.id, failure=failure)
                job_events.record(connection, part.id, Event.TRY_FAILED, details=failure)
    # Last: until then, the next driver goes on with it if this one dies.
    queue.withdraw(engine, job)


def approve(engine: Engine, job: StoredJob, approver: str, reason: str = "") -> None:
    """Record that a planned job may begin, and who approved it, and why. Raises Unreachable."""
    with database.transaction(engine) as connection:
        job_events.record(connection, job.id, Event.APPROVED, approver, reason or None)
        result = f"{job.message}: approved by {approver}{reason and f': {reason}'}"
        audit.record(connection, job.who, job.kind, job.table, job.reason, result, approver=approver)


def require_approved(engine: Engine, job: StoredJob) -> None:
    """Raises UsageError if nobody has approved a planned job, and Unreachable. One that has begun needs no approval."""
    if job.state != PLANNED:
        return
    with database.reading(engine) as connection:
        if Event.APPROVED not in job_events.newest_times(connection, job.id):
            raise UsageError(
                f"{job.table}: {job.id} is not begun, as nobody has approved it: approve it in Airflow, or begin it "
                f"with --approved-by NAME"
            )


def get(engine: Engine, kind: type[Kind], number: int, name: str = "") -> Kind:
    """As `read`. Raises Unreachable, too."""
    with database.reading(engine) as connection:
        return read(connection, kind, number, name)


def read(connection: Connection, kind: type[Kind], number: int, name: str = "") -> Kind:
    """The job of this number. name: of its kind, for `StoredJob`. Raises UsageError if there is no such job."""
    job = JobId(name or kind.KIND, number)
    if row := connection.execute(select(jobs).where(is_job(job))).one_or_none():
        return kind.of(connection, row)
    raise UsageError(f"there is no {job}: `sluice jobs --kind {job.kind}` lists them")


def select_jobs(connection: Connection, kind: type[Kind], *conditions: ColumnElement[bool]) -> list[Kind]:
    """The jobs of a kind that satisfy the conditions, oldest first."""
    selected = select(jobs).where(jobs.c.kind == kind.KIND, *conditions).order_by(jobs.c.number)
    return [kind.of(connection, row) for row in connection.execute(selected).all()]


def select_newest(connection: Connection, kind: str, table: str | None, limit: int) -> Sequence[Row[Any]]:
    """The rows of the newest jobs, newest first. table: those for this table, or that restore or refresh it."""
    chosen = select(jobs).where(jobs.c.kind == kind).order_by(jobs.c.number.desc()).limit(limit)
    if table:
        chosen = chosen.where(or_(jobs.c.target == table, jobs.c.parameters.contains(f'"{table}"', autoescape=True)))
    return connection.execute(chosen).all()


def newest(engine: Engine, kind: type[Kind], table: str | None = None, limit: int = 50) -> list[Kind]:
    """The newest jobs of a kind, newest first. Parameters: as for `select_newest`. Raises Unreachable."""
    with database.reading(engine) as connection:
        return [kind.of(connection, row) for row in select_newest(connection, kind.KIND, table, limit)]


def of_all_kinds(connection: Connection, *conditions: ColumnElement[bool]) -> list[StoredJob]:
    """The jobs that satisfy the conditions, by kind, oldest first."""
    rows = connection.execute(select(jobs).where(*conditions).order_by(jobs.c.kind, jobs.c.number)).all()
    return [StoredJob.of(connection, row) for row in rows]


def may_be_tried_again(connection: Connection, job: StoredJob) -> bool:
    """Whether an abandoned job ended so recently that the next try of its task in Airflow may follow."""
    name = _lease_name(job.kind, job.table, job.root)
    expires_at = connection.execute(select(leases.c.expires_at).where(leases.c.flow == name)).scalar_one_or_none()
    failed_at = job_events.newest_times(connection, job.id).get(Event.TRY_FAILED, 0.0)
    now = database.now(connection)
    # A process that died has not said so, and its lease was its last sign of life.
    ended_at = max(job.state_at, failed_at, min(expires_at or 0.0, now))
    return job.is_abandoned and now - ended_at < AGAIN_SECONDS


def _lease_name(kind: str, table: str, root: int) -> str:
    """The name of the lease that a job holds while it is at work. Any window of a table excludes others."""
    return lease.window_lease(table) if kind == JobKind.WINDOW else str(JobId(kind, root))
