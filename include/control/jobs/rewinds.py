"""Rewinds as they are remembered: what was planned and approved, how far one has come, and which flows it has stopped.

Whoever dies in the middle of one leaves here what the next try needs to end it. Until it has ended, nobody else writes
the tables it puts back.
"""

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, insert, select, update

from include.control import commands, lease
from include.control.jobs import backfills, held_flows, paused_flows, stale_tables
from include.control.store import database
from include.control.store.job_schema import rewinds
from include.errors import Broken, UsageError
from include.spec import table_of

PLANNED, STOPPING, RESTORING = "planned", "stopping", "restoring"
REFRESHING, BEGINNING, DONE, GIVEN_UP = "refreshing", "beginning", "done", "given up"


@dataclass(frozen=True)
class Part:
    """Where one table goes back to: version is its own, quarantine that of its quarantine, None where it has none.

    at: when that version was committed, in seconds since 1970.
    generations: the newest of each of its flows that has one, when that was planned.
    """

    version: int
    quarantine: int | None
    generations: dict[str, int]
    at: float


@dataclass(frozen=True)
class Rewind:
    """cut: by table, in graph order. stopped: the flows it has stopped, with what was wanted of each and why.

    Moments are seconds since 1970 by the control database's clock, but `moment`, which is ISO 8601. is_held: its job
    lives.
    """

    number: int
    table: str
    moment: str
    cut: dict[str, Part]
    views: tuple[str, ...]
    key: str
    who: str
    reason: str
    phase: str
    said: str
    failure: str | None
    stopped: dict[str, tuple[str, str]]
    planned_at: float
    phase_at: float
    ended_at: float | None
    is_held: bool

    @property
    def flows(self) -> list[str]:
        """All that write the tables it puts back."""
        return [flow for part in self.cut.values() for flow in part.generations]

    @property
    def unfinished(self) -> str:
        """Why others have to wait, and the way out."""
        return (
            f"rewind {self.number} of {self.table} has begun and is not done: end it by spark-submit jobs/rewind.py "
            f"--number {self.number}, or give it up (action give up)"
        )

    @property
    def is_begun(self) -> bool:
        """Whether its flows may be stopped, and tables put back."""
        return self.ended_at is None and self.phase != PLANNED


def of_job(number: int) -> str:
    """The name of the lease that the job of a rewind holds while it lives."""
    return f"rewind {number}"


def plan(
    engine: Engine, table: str, moment: str, cut: Mapping[str, Part], views: Iterable[str], who: str, reason: str
) -> Rewind:
    """Enter one that nobody has begun. Raises Unreachable."""
    with database.transaction(engine) as connection:
        now = database.now(connection)
        values: dict[str, Any] = {"target": table, "moment": moment, "cut": _text(cut)}
        values |= {"views": json.dumps(list(views))}
        values |= {"key": uuid.uuid4().hex, "who": who, "reason": reason, "phase": PLANNED, "said": f"to {moment}"}
        values |= {"planned_at": now, "phase_at": now}
        number = int(connection.execute(insert(rewinds).values(values).returning(rewinds.c.number)).scalar_one())
        return _read(connection, number)


def get(engine: Engine, number: int) -> Rewind:
    """Raises UsageError where there is none, and Unreachable."""
    with database.reading(engine) as connection:
        return _read(connection, number)


def begun(engine: Engine, tables: Collection[str]) -> list[Rewind]:
    """Those that put back one of these tables and have not ended. Raises Unreachable."""
    with database.reading(engine) as connection:
        return _begun(connection, tables)


def _begun(connection: Connection, tables: Collection[str]) -> list[Rewind]:
    own = rewinds.c.ended_at.is_(None) & (rewinds.c.phase != PLANNED)
    rows = connection.execute(select(rewinds).where(own).order_by(rewinds.c.number)).all()
    return [one for row in rows if set(tables) & set((one := _of(connection, row)).cut)]


def obstacles(connection: Connection, tables: Collection[str], own: int | None = None) -> list[str]:
    """The jobs that have begun and are not done with one of these tables, each in a sentence with the way out.

    own: the number of the rewind that asks.
    """
    others = [one for one in _begun(connection, tables) if one.number != own]
    return [
        *(f"{one.table}: {one.unfinished}" for one in others),
        *(
            f"{one.table}: backfill {one.number} is in the middle of it: let it end, run it again where it has died, "
            f"or give it up (action give up)"
            for one in backfills.at_work(connection)
            if not {one.table, *map(table_of, one.readers)}.isdisjoint(tables)
        ),
    ]


def newest(engine: Engine, limit: int = 20) -> list[Rewind]:
    """Newest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(rewinds).order_by(rewinds.c.number.desc()).limit(limit)).all()
        return [_of(connection, row) for row in rows]


def require_none(engine: Engine, table: str, is_held: Callable[[str], bool]) -> None:
    """Raises Broken where one is not done with the table. is_held: whether the caller holds a lease of this name."""
    for one in begun(engine, [table]):
        if not is_held(of_job(one.number)):
            raise Broken(f"{table}: nobody else may write it: {one.unfinished}", "REWIND_UNFINISHED")


def say(engine: Engine, number: int, phase: str, said: str) -> None:
    """How far it has come."""
    print(f"sluice: rewind {number}: {phase}: {said}", flush=True)
    with database.transaction(engine) as connection:
        _set(connection, number, phase=phase, said=said, failure=None, phase_at=database.now(connection))


def stop(engine: Engine, one: Rewind) -> None:
    """From now on its flows are wanted stopped, and nobody else may write its tables. How far an earlier try has come
    stays.

    Raises UsageError where another job has begun with one of these tables: neither could end before the other.
    """
    why = f"rewind {one.number} of {one.table} to {one.moment}"
    with database.transaction(engine) as connection:
        # Two that begin at one moment would not see each other.
        database.serialize(connection, "jobs")
        if _read(connection, one.number).phase == PLANNED and (others := obstacles(connection, one.cut, one.number)):
            raise UsageError(f"{one.table}: rewind {one.number} is not begun: {'; '.join(others)}")
        paused_flows.stop(connection, of_job(one.number), one.flows, one.who, why)
        before = _read(connection, one.number)
        phase = STOPPING if before.phase == PLANNED else before.phase
        said, now = f"{len(before.stopped)} flows end their batch in hand", database.now(connection)
        _set(connection, one.number, phase=phase, said=said, failure=None, phase_at=now)
        commands.record(connection, one.who, "rewind", one.table, one.reason, f"begins: to {one.moment}")


def restore(engine: Engine, one: Rewind, cut: Mapping[str, Part]) -> None:
    """Its flows have stopped, and this is what is put back. From now on it can only be ended."""
    with database.transaction(engine) as connection:
        _set(connection, one.number, cut=_text(cut))
    say(engine, one.number, RESTORING, f"{len(cut)} tables are put back")


def note(engine: Engine, one: Rewind, failure: str) -> None:
    """It has failed behind its first RESTORE: the flows stay stopped until a next try has ended it."""
    with database.transaction(engine) as connection:
        _set(connection, one.number, failure=failure)


def give_up(engine: Engine, one: Rewind, why: str) -> None:
    """Nothing was put back, and nothing will be: its flows go on as before."""
    with database.transaction(engine) as connection:
        end(connection, one, GIVEN_UP, why, why)


def finish(engine: Engine, one: Rewind, said: str, failure: str | None = None) -> None:
    """All of it is done: its flows go on, in their new generations. What was stale for a backfill that is undone is so
    no more, and what was left to do of that is not. failure: what the ledger found behind it.
    """
    with database.transaction(engine) as connection:
        undo(connection, one, one.cut)
        end(connection, one, DONE, said, failure)


def undo(connection: Connection, one: Rewind, tables: Iterable[str]) -> None:
    """These were put back, and what followed from the rows that are undone is no more."""
    for table in tables:
        since = one.cut[table].at
        stale_tables.forget(connection, table, since)
        backfills.forget(connection, table, since, f"rewind {one.number} has undone what it followed")


def end(connection: Connection, one: Rewind, phase: str, said: str, failure: str | None = None) -> None:
    """Its flows go on as they are wanted."""
    paused_flows.resume(connection, of_job(one.number), one.who)
    now = database.now(connection)
    _set(connection, one.number, phase=phase, said=said, failure=failure, phase_at=now, ended_at=now)
    commands.record(connection, one.who, "rewind", one.table, one.reason, f"{phase}: {failure or said}")


def _text(cut: Mapping[str, Part]) -> str:
    return json.dumps({name: asdict(part) for name, part in cut.items()})


def _set(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(rewinds).where(rewinds.c.number == number).values(values))


def _read(connection: Connection, number: int) -> Rewind:
    row = connection.execute(select(rewinds).where(rewinds.c.number == number)).one_or_none()
    if row is None:
        raise UsageError(f"there is no rewind {number}: python -m include.ledger rewinds lists them")
    return _of(connection, row)


def _of(connection: Connection, row: Row[Any]) -> Rewind:
    cut = {name: Part(**part) for name, part in json.loads(row.cut).items()}
    stopped = held_flows.read(row.stopped)
    is_held = of_job(row.number) in lease.alive(connection)
    return Rewind(
        *(row.number, row.target, row.moment, cut, tuple(json.loads(row.views)), row.key, row.who, row.reason),
        *(row.phase, row.said, row.failure, stopped, row.planned_at, row.phase_at, row.ended_at, is_held),
    )
