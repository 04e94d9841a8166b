"""The stored state of backfills, from which a retry completes the backfill of a job that died."""

import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, Row, insert, select, update

from include import logs
from include.control import audit, lease, resets
from include.control.jobs import held_flows, job_id, outdated_rows, queue, stale_tables
from include.control.jobs.queue import JobStatus
from include.control.resets import Reset
from include.control.store import database
from include.control.store.job_schema import backfills, requests
from include.errors import FlowFailed, UsageError
from include.project.ranges import Slice, from_stored_texts
from include.spec import table_of

# The requester outside Airflow. A repeated command is a new request there, not the retry of a run.
BY_HAND = "by hand"
PLANNED, COMPUTING, WAITING = "planned", "computing", "waiting"
DRAINING, REPLACING, DONE, GIVEN_UP = "draining", "replacing", "done", "given up"


@dataclass(frozen=True)
class Backfill:
    """The backfill of one table. root: the number of the requested backfill, possibly this one. key: identifies its
    commits. readers: the flows it has stopped, each with the state and reason wanted before. version: the table version
    that replaced the range. Times are seconds since 1970 by the control database's clock. is_held: its job or its
    driver is alive. alone: tables below are not backfilled; the commit records that too. definitions: by flow of the
    table, the SHA-256 of what makes its rows, which the commit records; empty before the job has begun.
    """

    number: int
    root: int
    table: str
    range: Slice
    key: str
    who: str
    phase: str
    message: str
    failure: str | None
    readers: dict[str, tuple[str, str]]
    version: int | None
    rows_before: int | None
    rows_after: int | None
    planned_at: float
    phase_at: float
    ended_at: float | None
    is_held: bool
    alone: bool = False
    definitions: dict[str, str] = field(default_factory=dict)

    @property
    def is_abandoned(self) -> bool:
        """Whether it is unfinished and no live job or driver executes it."""
        return self.ended_at is None and not self.is_held


@dataclass(frozen=True)
class Follower:
    """A table below a backfilled one. range: the range of it to recompute, or what to do where that is impossible."""

    table: str
    range: Slice | str


def lease_name(root: int) -> str:
    """The name of the lease that the backfill's job holds while it is alive."""
    return str(job_id.backfill(root))


def find(engine: Engine, number: int) -> Backfill:
    """Raises UsageError if no backfill has this number, and Unreachable."""
    with database.reading(engine) as connection:
        return _read(connection, number)


def begin(engine: Engine, table: str, range_: Slice, requester: str) -> Backfill:
    """Store a new backfill, or return the same unfinished one of a job that died. Raises Unreachable."""
    is_unfinished = backfills.c.ended_at.is_(None)
    with database.transaction(engine) as connection:
        roots = connection.execute(select(backfills.c.root).where(is_unfinished)).scalars().all()
        is_of_table = backfills.c.number.in_(roots) & (backfills.c.target == table)
        for row in connection.execute(select(backfills).where(is_of_table).order_by(backfills.c.number)).all():
            backfill = _to_backfill(connection, row)
            if backfill.range == range_ and not backfill.is_held:
                return backfill
        return _read(connection, _insert(connection, table, range_, requester, None))


def request(engine: Engine, table: str, range_: Slice, requester: str, driver: str) -> int | None:
    """Request a backfill from a driver, and return its root. An equal request that no driver has started is reused.

    Returns None, and stores nothing, if the driver is not alive. Raises UsageError if this run's backfill was given up,
    and Unreachable.
    """
    unstarted = select(backfills.c.number).join(requests, requests.c.root == backfills.c.number)
    with database.reading(engine) as connection:
        if lease.driver_lease(driver) not in lease.alive(connection):
            return None
        found = connection.execute(unstarted.where(_is_of(table, range_), requests.c.tries == 0)).scalars().first()
    require_not_given_up(engine, table, range_, requester)
    root = found or begin(engine, table, range_, requester).root
    if not queue.request(engine, job_id.backfill(root), driver):
        return None
    with database.transaction(engine) as connection:
        is_planned = (backfills.c.number == root) & (backfills.c.phase == PLANNED)
        connection.execute(update(backfills).where(is_planned).values(said=f"driver '{driver}' is asked to do it"))
    return root


def fail_request(engine: Engine, root: int, failure: str) -> None:
    """Store the failure unless another job has taken over the backfill. Withdraw the request. Raises Unreachable."""
    with database.transaction(engine) as connection:
        if lease_name(root) not in lease.alive(connection):
            is_unfinished = (backfills.c.root == root) & backfills.c.ended_at.is_(None)
            connection.execute(update(backfills).where(is_unfinished).values(failure=failure))
    # Last: until then, the next driver goes on with it if this one dies.
    queue.withdraw(engine, job_id.backfill(root))


def status(engine: Engine, root: int) -> JobStatus:
    """The status of a requested backfill, for the task that waits for it. Raises Unreachable."""
    # Read the request before the backfills: a driver completes its work first and withdraws the request afterwards.
    with database.reading(engine) as connection:
        waits, is_requested = queue.waiting(connection, job_id.backfill(root)), _driver(connection, root) is not None
        is_held = lease_name(root) in lease.alive(connection)
    unfinished = unfinished_of(engine, root)
    if not unfinished:
        is_given_up = find(engine, root).phase == GIVEN_UP
        message = "it was given up" if is_given_up else "it is done"
        return JobStatus(message, is_done=not is_given_up, failure=message if is_given_up else None)
    latest = max(unfinished, key=lambda backfill: backfill.phase_at)
    if is_held:
        return JobStatus(f"{latest.table}: {latest.phase}: {latest.message}", is_in_hand=True)
    if waits:
        return waits
    if is_requested:
        return JobStatus("the next driver goes on with it")
    return JobStatus("no driver is asked for it", failure=latest.failure)


def interrupted(engine: Engine, table: str) -> list[Backfill]:
    """Unfinished backfills that have stopped readers of the table. Their jobs are dead: the caller holds its window."""
    return _unfinished(engine, (backfills.c.target == table) & backfills.c.readers.is_not(None))


def active(connection: Connection) -> list[Backfill]:
    """The unfinished backfills whose job is alive or that have stopped readers, oldest first."""
    unfinished = select(backfills).where(backfills.c.ended_at.is_(None)).order_by(backfills.c.number)
    candidates = [_to_backfill(connection, row) for row in connection.execute(unfinished).all()]
    return [backfill for backfill in candidates if backfill.is_held or backfill.readers]


def unfinished_of(engine: Engine, root: int) -> list[Backfill]:
    """The unfinished backfills of one request. Raises Unreachable."""
    return _unfinished(engine, backfills.c.root == root)


def unfinished_on(engine: Engine, table: str) -> list[Backfill]:
    """The unfinished backfills of the table, whether or not their jobs are alive. Raises Unreachable."""
    return _unfinished(engine, backfills.c.target == table)


def newest(engine: Engine, table: str | None = None, limit: int = 50) -> list[Backfill]:
    """The newest backfills of the table, or of all tables, newest first. Raises Unreachable."""
    selected = backfills.c.target == table if table else backfills.c.number > 0
    with database.reading(engine) as connection:
        rows = connection.execute(select(backfills).where(selected).order_by(backfills.c.number.desc()).limit(limit))
        return [_to_backfill(connection, row) for row in rows.all()]


def set_phase(engine: Engine, number: int, phase: str, message: str) -> None:
    """Store the phase and a progress message, and log them. Raises Unreachable."""
    logs.info(f"backfill {number}: {phase}: {message}")
    with database.transaction(engine) as connection:
        now = database.now(connection)
        _update(connection, number, phase=phase, said=message, failure=None, phase_at=now)


def stop_readers(engine: Engine, backfill: Backfill, flows: Collection[str]) -> None:
    """Set these flows to stopped, and store what was wanted of them, unless an earlier try has stored it.

    Raises FlowFailed if an unfinished rewind holds one of the flows, because its table reads the replaced rows.
    """
    with database.transaction(engine) as connection:
        database.serialize(connection, "jobs")
        if rewinds := held_flows.rewinds_of(connection, set(flows) - set(backfill.readers)):
            names = " and ".join(map(str, rewinds))
            raise FlowFailed(
                f"{backfill.table}: {names} is not done with a flow that reads it: nothing was replaced; end that "
                f"one, or give it up (action give up), and run the backfill again",
                "REWIND_UNFINISHED",
            )
        reason = f"backfill {backfill.number} of {backfill.table} replaces rows that it reads"
        held_flows.stop(connection, job_id.backfill(backfill.number), flows, backfill.who, reason)


def fail_before_replace(engine: Engine, backfill: Backfill, failure: str) -> None:
    """Store a failure from before the replace, and restore what was wanted of the readers. Raises Unreachable."""
    with database.transaction(engine) as connection:
        held_flows.resume(connection, job_id.backfill(backfill.number), backfill.who)
        _update(connection, backfill.number, failure=failure)


def record_failure(engine: Engine, backfill: Backfill, failure: str) -> None:
    """Store a failure from after the replace. The readers stay stopped until a retry succeeds. Raises Unreachable."""
    with database.transaction(engine) as connection:
        _update(connection, backfill.number, failure=failure)


def finish(
    engine: Engine,
    backfill: Backfill,
    version: int | None,
    rows: tuple[int, int],
    followers: Iterable[Follower],
    definitions: Mapping[str, str],
) -> None:
    """Complete the backfill: `version` has replaced its range. rows: how many the range held before, and holds now.
    definitions: by flow of the table, the one that made the rows, as far as `version` says so.

    One transaction, so a kill cannot leave half of it. The readers resume in a new generation after that version. The
    followers are STALE until they are recomputed. A flow of the table itself keeps its position or its new generation.
    """
    before, after = rows
    requester, reason = backfill.who, f"behind backfill {backfill.number}"
    with database.transaction(engine) as connection:
        for flow in held_flows.resume(connection, job_id.backfill(backfill.number), requester):
            if table_of(flow) != backfill.table:
                resets.request(connection, Reset(flow, accepts_loss=False, who=requester, reason=reason))
        for follower in followers:
            _mark_follower(connection, backfill, follower)
        stale_tables.unmark_range(connection, backfill.table, backfill.range)
        outdated_rows.unmark_range(connection, backfill.table, backfill.range, definitions, backfill.planned_at)
        _close_covered(connection, backfill)
        now = database.now(connection)
        message = f"{before:,} rows before, {after:,} after"
        values = {"version": version, "rows_before": before, "rows_after": after, "phase_at": now, "ended_at": now}
        _update(connection, backfill.number, phase=DONE, said=message, failure=None, **values)
        audit.record(connection, requester, "backfill", backfill.table, str(backfill.range), message)


def give_up(connection: Connection, job: Backfill, message: str) -> None:
    """Give up a backfill that has replaced nothing. Its table becomes STALE if it was to follow another table."""
    held_flows.resume(connection, job_id.backfill(job.number), job.who)
    now = database.now(connection)
    _update(connection, job.number, phase=GIVEN_UP, said=message, failure=None, phase_at=now, ended_at=now)
    stale_tables.mark_given_up(connection, job.table, job.root)
    audit.record(connection, job.who, "backfill", job.table, str(job.range), f"{GIVEN_UP}: {message}")


def require_not_given_up(engine: Engine, table: str, range_: Slice, requester: str) -> None:
    """Raises UsageError if the same run's backfill of this range was given up: a retry must not begin it again."""
    if requester == BY_HAND:
        return
    is_given_up = _is_of(table, range_) & (backfills.c.who == requester) & (backfills.c.phase == GIVEN_UP)
    with database.reading(engine) as connection:
        number = connection.execute(select(backfills.c.number).where(is_given_up)).scalars().first()
    if number is not None:
        raise UsageError(f"{table} {range_}: backfill {number} of run '{requester}' was given up: trigger another run")


def close_planned_after(connection: Connection, table: str, since: float, reason: str) -> None:
    """Close the unfinished backfills of a table that were planned after `since`, in seconds since 1970."""
    is_later = (backfills.c.target == table) & backfills.c.ended_at.is_(None) & (backfills.c.planned_at > since)
    values = {"phase": DONE, "said": reason, "failure": None, "ended_at": database.now(connection)}
    connection.execute(update(backfills).where(is_later).values(values))


def _mark_follower(connection: Connection, backfill: Backfill, follower: Follower) -> None:
    cause = f"{backfill.table} was backfilled {backfill.range}, and {follower.table} was made of what it held before"
    if isinstance(follower.range, Slice):
        is_same = (backfills.c.root == backfill.root) & (backfills.c.target == follower.table)
        unfinished = select(backfills.c.number).where(is_same, backfills.c.ended_at.is_(None))
        if connection.execute(unfinished).first() is None:
            _insert(connection, follower.table, follower.range, backfill.who, backfill.root)
        stale_tables.mark(connection, follower.table, follower.range, cause, follows=backfill.root)
    else:
        stale_tables.mark(connection, follower.table, backfill.range, f"{cause}: {follower.range}")


def _close_covered(connection: Connection, backfill: Backfill) -> None:
    """Close the other unfinished backfills inside the same range: this one has done their work."""
    is_covered = (backfills.c.target == backfill.table) & backfills.c.ended_at.is_(None) & backfills.c.readers.is_(None)
    begins, ends = backfill.range.texts
    if begins is not None:
        is_covered &= (backfills.c.begins >= begins) & (backfills.c.ends <= ends)
    for row in connection.execute(select(backfills).where(is_covered, backfills.c.number != backfill.number)).all():
        if not _to_backfill(connection, row).is_held:
            message, now = f"backfill {backfill.number} did it", database.now(connection)
            _update(connection, row.number, phase=DONE, said=message, failure=None, ended_at=now)


def _is_of(table: str, range_: Slice) -> ColumnElement[bool]:
    begins, ends = range_.texts
    is_same = backfills.c.begins.is_not_distinct_from(begins) & backfills.c.ends.is_not_distinct_from(ends)
    return (backfills.c.target == table) & is_same


def _driver(connection: Connection, root: int) -> str | None:
    """The driver that is asked for the backfill."""
    return connection.execute(select(requests.c.driver).where(requests.c.root == root)).scalar_one_or_none()


def _insert(connection: Connection, table: str, range_: Slice, requester: str, root: int | None) -> int:
    now, (begins, ends) = database.now(connection), range_.texts
    values: dict[str, Any] = {"target": table, "begins": begins, "ends": ends, "key": uuid.uuid4().hex}
    values |= {"who": requester, "root": root or 0, "phase": PLANNED, "said": str(range_)}
    values |= {"planned_at": now, "phase_at": now}
    number = int(connection.execute(insert(backfills).values(values).returning(backfills.c.number)).scalar_one())
    if root is None:
        _update(connection, number, root=number)
    return number


def _unfinished(engine: Engine, condition: ColumnElement[bool]) -> list[Backfill]:
    statement = select(backfills).where(condition & backfills.c.ended_at.is_(None)).order_by(backfills.c.number)
    with database.reading(engine) as connection:
        return [_to_backfill(connection, row) for row in connection.execute(statement).all()]


def _update(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(backfills).where(backfills.c.number == number).values(values))


def _read(connection: Connection, number: int) -> Backfill:
    row = connection.execute(select(backfills).where(backfills.c.number == number)).one_or_none()
    if row is None:
        raise UsageError(f"there is no backfill {number}: `sluice jobs --kind backfill` lists them")
    return _to_backfill(connection, row)


def _to_backfill(connection: Connection, row: Row[Any]) -> Backfill:
    range_, readers = from_stored_texts(row.begins, row.ends), held_flows.parse(row.readers)
    driver = _driver(connection, row.root)
    is_held = not {lease_name(row.root), lease.driver_lease(driver or "")}.isdisjoint(lease.alive(connection))
    return Backfill(
        *(row.number, row.root, row.target, range_, row.key, row.who, row.phase, row.said),
        *(row.failure, readers, row.version, row.rows_before, row.rows_after),
        *(row.planned_at, row.phase_at, row.ended_at, is_held),
    )
