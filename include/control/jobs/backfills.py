"""The kind of jobs that recompute a range of a table, and then of the tables below: backfills and full refreshes."""

import json
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from sqlalchemy import ColumnElement, Connection, Engine, select, update

from include.control.flows import queue, resets
from include.control.flows.resets import Reset
from include.control.jobs import held_flows, stale_rows, store
from include.control.jobs.store import DONE, GIVEN_UP, PLANNED, StoredJob
from include.control.leases import lease
from include.control.store import audit, database, job_id
from include.control.store.job_id import JobKind
from include.control.store.job_schema import jobs
from include.errors import FlowFailed, UsageError
from include.project.ranges import Slice, from_stored_texts
from include.spec import table_of

COMPUTING, WAITING, DRAINING, REPLACING = "computing", "waiting", "draining", "replacing"
_UNFINISHED = jobs.c.ended_at.is_(None)


@dataclass(frozen=True)
class Backfill(StoredJob):
    """The backfill of one table. It stops flows that read the table.

    alone: tables below are not backfilled; the commit records that too. definitions: by flow of the table, the SHA-256
    of what makes its rows, which the commit records; empty before the job has begun.
    """

    KIND: ClassVar[str] = JobKind.BACKFILL

    alone: bool = False
    definitions: dict[str, str] = field(default_factory=dict)

    @property
    def range(self) -> Slice:
        """What of the table it recomputes."""
        return from_stored_texts(self.parameters["begins"], self.parameters["ends"])

    @property
    def key(self) -> str:
        """Identifies its commits."""
        return str(self.parameters["key"])

    @property
    def version(self) -> int | None:
        """The table version that replaced the range; None before."""
        return self.outcome.get("version")


@dataclass(frozen=True)
class Follower:
    """A table below a backfilled one. range: the range of it to recompute, or what to do where that is impossible."""

    table: str
    range: Slice | str


def begin(engine: Engine, table: str, range_: Slice, requester: str) -> Backfill:
    """Store a new backfill, or return the same unfinished one of a job that died. Raises Unreachable."""
    unfinished_roots = select(jobs.c.root).where(jobs.c.kind == JobKind.BACKFILL, _UNFINISHED)
    with database.transaction(engine) as connection:
        for backfill in _of(connection, table, range_, jobs.c.number.in_(unfinished_roots)):
            if not backfill.is_held:
                return backfill
        return store.read(connection, Backfill, _insert(connection, table, range_, requester, None))


def request(engine: Engine, table: str, range_: Slice, requester: str, driver: str) -> int | None:
    """Request a backfill from a driver, and return its root. An equal request that no driver has started is reused.

    Returns None, and stores nothing, if the driver is not alive. Raises UsageError if this run's backfill was given up,
    and Unreachable.
    """
    with database.reading(engine) as connection:
        if lease.driver_lease(driver) not in lease.alive(connection):
            return None
        unstarted = _of(connection, table, range_, jobs.c.driver.is_not(None), jobs.c.tries == 0)
    require_not_given_up(engine, table, range_, requester)
    root = unstarted[0].root if unstarted else begin(engine, table, range_, requester).root
    if not queue.request(engine, job_id.backfill(root), driver):
        return None
    with database.transaction(engine) as connection:
        is_planned = queue.is_job(job_id.backfill(root)) & (jobs.c.state == PLANNED)
        connection.execute(update(jobs).where(is_planned).values(message=f"driver '{driver}' is asked to do it"))
    return root


def unfinished(engine: Engine, root: int | None = None, table: str | None = None) -> list[Backfill]:
    """The unfinished backfills of one request, or of one table, whether or not their jobs are alive.

    Raises Unreachable.
    """
    condition = jobs.c.root == root if table is None else jobs.c.target == table
    with database.reading(engine) as connection:
        return store.select_jobs(connection, Backfill, condition, _UNFINISHED)


def stop_readers(engine: Engine, backfill: Backfill, flows: Collection[str]) -> None:
    """Set these flows to stopped, and store what was wanted of them, unless an earlier try has stored it.

    Raises FlowFailed if an unfinished rewind holds one of the flows, because its table reads the replaced rows.
    """
    with database.transaction(engine) as connection:
        database.serialize(connection, "jobs")
        if rewinds := held_flows.rewinds_of(connection, set(flows) - set(backfill.stopped)):
            names = " and ".join(map(str, rewinds))
            raise FlowFailed(
                f"{backfill.table}: {names} is not done with a flow that reads it: nothing was replaced; end that "
                f"one, or give it up (action give up), and run the backfill again",
                "REWIND_UNFINISHED",
            )
        reason = f"backfill {backfill.number} of {backfill.table} replaces rows that it reads"
        held_flows.stop(connection, backfill.id, flows, backfill.who, reason)


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
    message, reason = f"{before:,} rows before, {after:,} after", f"behind backfill {backfill.number}"
    outcome = json.dumps({"version": version, "rows_before": before, "rows_after": after})
    with database.transaction(engine) as connection:
        for flow in store.end(connection, backfill, DONE, message, outcome=outcome):
            if table_of(flow) != backfill.table:
                resets.request(connection, Reset(flow, accepts_loss=False, who=backfill.who, reason=reason))
        stale_rows.unmark_range(connection, backfill.table, backfill.range, definitions, backfill.planned_at)
        _close_covered(connection, backfill)
        audit.record(connection, backfill.who, "backfill", backfill.table, str(backfill.range), message)
        for follower in followers:
            _mark_follower(connection, backfill, follower)


def give_up(connection: Connection, backfill: Backfill, message: str) -> None:
    """Give up a backfill that has replaced nothing. Its table becomes STALE if it was to follow another table."""
    store.end(connection, backfill, GIVEN_UP, message)
    stale_rows.mark_given_up(connection, backfill.table, backfill.root)
    result = f"{GIVEN_UP}: {message}"
    audit.record(connection, backfill.who, "backfill", backfill.table, str(backfill.range), result)


def require_not_given_up(engine: Engine, table: str, range_: Slice, requester: str) -> None:
    """Raises UsageError if the same run's backfill of this range was given up: a retry must not begin it again."""
    if requester == store.BY_HAND:
        return
    with database.reading(engine) as connection:
        given_up = _of(connection, table, range_, jobs.c.who == requester, jobs.c.state == GIVEN_UP)
    if given_up:
        raise UsageError(store.given_up_words(f"{table} {range_}", given_up[0].id, requester))


def close_planned_after(connection: Connection, table: str, since: float, reason: str) -> None:
    """Close the unfinished backfills of a table that were planned after `since`, in seconds since 1970."""
    is_later = (jobs.c.target == table) & _UNFINISHED & (jobs.c.planned_at > since)
    for backfill in store.select_jobs(connection, Backfill, is_later):
        store.set_state(connection, backfill.id, DONE, message=reason, ended_at=database.now(connection))


def _mark_follower(connection: Connection, backfill: Backfill, follower: Follower) -> None:
    cause = f"{backfill.table} was backfilled {backfill.range}, and {follower.table} was made of what it held before"
    if isinstance(follower.range, Slice):
        is_same = (jobs.c.root == backfill.root) & (jobs.c.target == follower.table) & _UNFINISHED
        if not store.select_jobs(connection, Backfill, is_same):
            _insert(connection, follower.table, follower.range, backfill.who, backfill.root)
        stale_rows.mark_stale(connection, follower.table, follower.range, cause, follows=backfill.root)
    else:
        stale_rows.mark_stale(connection, follower.table, backfill.range, f"{cause}: {follower.range}")


def _close_covered(connection: Connection, backfill: Backfill) -> None:
    """Close the other unfinished backfills inside the same range: this one has done their work."""
    is_idle = (jobs.c.target == backfill.table) & _UNFINISHED & jobs.c.stopped.is_(None)
    for other in store.select_jobs(connection, Backfill, is_idle, jobs.c.number != backfill.number):
        if not other.is_held and _covers(backfill.range, other.range):
            message, now = f"backfill {backfill.number} did it", database.now(connection)
            store.set_state(connection, other.id, DONE, message=message, ended_at=now)


def _covers(wide: Slice, narrow: Slice) -> bool:
    if wide.begin is None or wide.end is None:
        return True
    return narrow.begin is not None and narrow.end is not None and wide.begin <= narrow.begin and narrow.end <= wide.end


def _of(connection: Connection, table: str, range_: Slice, *conditions: ColumnElement[bool]) -> list[Backfill]:
    found = store.select_jobs(connection, Backfill, jobs.c.target == table, *conditions)
    return [backfill for backfill in found if backfill.range == range_]


def _insert(connection: Connection, table: str, range_: Slice, requester: str, root: int | None) -> int:
    begins, ends = range_.texts
    parameters = {"begins": begins, "ends": ends, "key": uuid.uuid4().hex}
    return store.insert_job(
        connection, JobKind.BACKFILL, table, requester, message=str(range_), root=root, parameters=parameters
    )
