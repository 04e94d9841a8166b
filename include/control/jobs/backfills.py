"""Backfills as they are remembered: how far each has come, and which readers it has stopped.

Whoever dies in the middle of one leaves here what the next try needs to end it.
"""

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, insert, select, update

from include.control import commands, lease
from include.control.jobs import held_flows, outdated_rows, paused_flows, stale_tables
from include.control.store import database
from include.control.store.job_schema import backfills, requests
from include.control.store.schema import resets
from include.errors import FlowFailed, UsageError
from include.spec import table_of
from include.validation.slices import Slice, stored

PLANNED, COMPUTING, WAITING = "planned", "computing", "waiting"
DRAINING, REPLACING, DONE, GIVEN_UP = "draining", "replacing", "done", "given up"


@dataclass(frozen=True)
class Backfill:
    """One table's part. root: the number of the one that somebody asked for, which may be this.

    key: its commits carry it. readers: the flows it has stopped, with what was wanted of each and why. version: that
    replaced its range. Moments are seconds since 1970 by the control database's clock. is_held: its job lives, or the
    driver that is asked to do it. alone: no other table is to follow; its commit says that too.
    """

    number: int
    root: int
    table: str
    range: Slice
    key: str
    who: str
    phase: str
    said: str
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

    @property
    def is_left_behind(self) -> bool:
        """Whether it was begun, is not done, and nobody is at it."""
        return self.ended_at is None and not self.is_held


@dataclass(frozen=True)
class Follower:
    """A table that reads one whose range is replaced. range: of it to be made again, or why nobody can."""

    table: str
    range: Slice | str


def of_job(root: int) -> str:
    """The name of the lease that the job of a backfill holds while it lives."""
    return f"backfill {root}"


def find(engine: Engine, number: int) -> Backfill:
    """Raises UsageError where there is none, and Unreachable."""
    with database.reading(engine) as connection:
        return _read(connection, number)


def begin(engine: Engine, table: str, range_: Slice, who: str) -> Backfill:
    """Enter one, or take up the same where its job has died before it had done all of it. Raises Unreachable."""
    left = backfills.c.ended_at.is_(None)
    with database.transaction(engine) as connection:
        roots = connection.execute(select(backfills.c.root).where(left)).scalars().all()
        own = backfills.c.number.in_(roots) & (backfills.c.target == table)
        for row in connection.execute(select(backfills).where(own).order_by(backfills.c.number)).all():
            found = _of(connection, row)
            if found.range == range_ and not found.is_held:
                return found
        return _read(connection, _insert(connection, table, range_, who, None))


def interrupted(engine: Engine, table: str) -> list[Backfill]:
    """Those that have stopped readers of the table. For whoever holds its window: the jobs of all others are dead."""
    own = (backfills.c.target == table) & backfills.c.ended_at.is_(None) & backfills.c.readers.is_not(None)
    with database.reading(engine) as connection:
        rows = connection.execute(select(backfills).where(own).order_by(backfills.c.number)).all()
        return [_of(connection, row) for row in rows]


def at_work(connection: Connection) -> list[Backfill]:
    """Those that are not done and whose job lives, or has stopped readers. Oldest first."""
    left = select(backfills).where(backfills.c.ended_at.is_(None)).order_by(backfills.c.number)
    found = [_of(connection, row) for row in connection.execute(left).all()]
    return [one for one in found if one.is_held or one.readers]


def undone(engine: Engine, root: int) -> list[Backfill]:
    """What is left to do of one that somebody asked for."""
    with database.reading(engine) as connection:
        own = (backfills.c.root == root) & backfills.c.ended_at.is_(None)
        rows = connection.execute(select(backfills).where(own).order_by(backfills.c.number)).all()
        return [_of(connection, row) for row in rows]


def newest(engine: Engine, table: str | None = None, limit: int = 50) -> list[Backfill]:
    """Newest first. Raises Unreachable."""
    chosen = backfills.c.target == table if table else backfills.c.number > 0
    with database.reading(engine) as connection:
        rows = connection.execute(select(backfills).where(chosen).order_by(backfills.c.number.desc()).limit(limit))
        return [_of(connection, row) for row in rows.all()]


def say(engine: Engine, number: int, phase: str, said: str) -> None:
    """How far it has come."""
    print(f"sluice: backfill {number}: {phase}: {said}", flush=True)
    with database.transaction(engine) as connection:
        now = database.now(connection)
        _set(connection, number, phase=phase, said=said, failure=None, phase_at=now)


def stop_readers(engine: Engine, one: Backfill, flows: Collection[str]) -> None:
    """Want these flows stopped, and remember what was wanted of them: what an earlier try has remembered stays.

    Raises FlowFailed where a rewind has begun and is not done with one of them: its table reads what is replaced.
    """
    with database.transaction(engine) as connection:
        database.serialize(connection, "jobs")
        if others := held_flows.rewinds_of(connection, set(flows) - set(one.readers)):
            raise FlowFailed(
                f"{one.table}: {others} is not done with a flow that reads it: nothing was replaced; end that one, or "
                f"give it up (action give up), and run the backfill again",
                "REWIND_UNFINISHED",
            )
        why = f"backfill {one.number} of {one.table} replaces rows that it reads"
        paused_flows.stop(connection, f"backfill {one.number}", flows, one.who, why)


def fail(engine: Engine, one: Backfill, failure: str) -> None:
    """It has failed before it replaced anything: what was wanted of its readers is wanted again."""
    with database.transaction(engine) as connection:
        paused_flows.resume(connection, f"backfill {one.number}", one.who)
        _set(connection, one.number, failure=failure)


def note(engine: Engine, one: Backfill, failure: str) -> None:
    """It has failed behind that."""
    with database.transaction(engine) as connection:
        _set(connection, one.number, failure=failure)


def finish(
    engine: Engine, one: Backfill, version: int | None, rows: tuple[int, int], followers: Iterable[Follower]
) -> None:
    """Its range is replaced, by this version: its readers go on behind it, in a new generation, and what was made of
    the old rows is stale until it is made again. One transaction, so that a kill leaves all of that or nothing.

    A flow of the table itself goes on where it stood, or has its new generation already.
    """
    before, after = rows
    with database.transaction(engine) as connection:
        for flow in paused_flows.resume(connection, f"backfill {one.number}", one.who):
            if table_of(flow) == one.table:
                continue
            values = {"flow": flow, "accepts_loss": False, "who": one.who, "reason": f"behind backfill {one.number}"}
            statement = database.insert(connection, resets).values(values)
            connection.execute(statement.on_conflict_do_nothing())
        for follower in followers:
            _follow(connection, one, follower)
        stale_tables.end(connection, one.table, one.range)
        outdated_rows.end(connection, one.table, one.range, one.planned_at)
        _supersede(connection, one)
        now = database.now(connection)
        said = f"{before:,} rows before, {after:,} after"
        values = {"version": version, "rows_before": before, "rows_after": after, "phase_at": now, "ended_at": now}
        _set(connection, one.number, phase=DONE, said=said, failure=None, **values)
        commands.record(connection, one.who, "backfill", one.table, str(one.range), said)


def forget(connection: Connection, table: str, since: float, why: str) -> None:
    """What was planned for a table since then, in seconds since 1970, and is not done, will not be."""
    own = (backfills.c.target == table) & backfills.c.ended_at.is_(None) & (backfills.c.planned_at > since)
    values = {"phase": DONE, "said": why, "failure": None, "ended_at": database.now(connection)}
    connection.execute(update(backfills).where(own).values(values))


def _follow(connection: Connection, one: Backfill, follower: Follower) -> None:
    replaced = f"{one.table} was backfilled {one.range}, and {follower.table} was made of what it held before"
    if isinstance(follower.range, Slice):
        why, range_ = f"{replaced}: {stale_tables.awaits(one.root)}", follower.range
        same = (backfills.c.root == one.root) & (backfills.c.target == follower.table) & backfills.c.ended_at.is_(None)
        if connection.execute(select(backfills.c.number).where(same)).first() is None:
            _insert(connection, follower.table, range_, one.who, one.root)
    else:
        why, range_ = f"{replaced}: {follower.range}", one.range
    stale_tables.mark(connection, follower.table, range_, why)


def _supersede(connection: Connection, one: Backfill) -> None:
    """What another job has left undone inside the same range is done now."""
    others = (backfills.c.target == one.table) & backfills.c.ended_at.is_(None) & backfills.c.readers.is_(None)
    begins, ends = one.range.texts
    if begins is not None:
        others &= (backfills.c.begins >= begins) & (backfills.c.ends <= ends)
    for row in connection.execute(select(backfills).where(others, backfills.c.number != one.number)).all():
        if not _of(connection, row).is_held:
            said, now = f"backfill {one.number} did it", database.now(connection)
            _set(connection, row.number, phase=DONE, said=said, failure=None, ended_at=now)


def _insert(connection: Connection, table: str, range_: Slice, who: str, root: int | None) -> int:
    now, (begins, ends) = database.now(connection), range_.texts
    values: dict[str, Any] = {"target": table, "begins": begins, "ends": ends, "key": uuid.uuid4().hex, "who": who}
    values |= {"root": root or 0, "phase": PLANNED, "said": str(range_), "planned_at": now, "phase_at": now}
    number = int(connection.execute(insert(backfills).values(values).returning(backfills.c.number)).scalar_one())
    if root is None:
        _set(connection, number, root=number)
    return number


def _set(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(backfills).where(backfills.c.number == number).values(values))


def _read(connection: Connection, number: int) -> Backfill:
    row = connection.execute(select(backfills).where(backfills.c.number == number)).one_or_none()
    if row is None:
        raise UsageError(f"there is no backfill {number}: python -m include.ledger backfills lists them")
    return _of(connection, row)


def _of(connection: Connection, row: Row[Any]) -> Backfill:
    readers = held_flows.read(row.readers)
    asked = connection.execute(select(requests.c.driver).where(requests.c.root == row.root)).scalar_one_or_none()
    is_held = not {of_job(row.root), lease.of_driver(asked or "")}.isdisjoint(lease.alive(connection))
    return Backfill(
        *(row.number, row.root, row.target, stored(row.begins, row.ends), row.key, row.who, row.phase, row.said),
        *(row.failure, readers, row.version, row.rows_before, row.rows_after),
        *(row.planned_at, row.phase_at, row.ended_at, is_held),
    )
