"""The kind of jobs that restore tables to a moment: the approved plan of each, and what it blocks.

Until a rewind that has begun is over, nobody else writes the tables it restores.
"""

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from sqlalchemy import Connection, Engine

from include import logs
from include.control.flows import resets
from include.control.flows.resets import Reset
from include.control.jobs import backfills, held_flows, stale_rows, store
from include.control.jobs.backfills import Backfill
from include.control.jobs.store import DONE, GIVEN_UP, PLANNED, StoredJob
from include.control.store import audit, database
from include.control.store.job_id import JobKind
from include.control.store.job_schema import jobs
from include.errors import FlowBroken, UsageError
from include.project.ranges import Slice
from include.spec import table_of

STOPPING, RESTORING, REFRESHING, BEGINNING = "stopping", "restoring", "refreshing", "beginning"


@dataclass(frozen=True)
class RestorePoint:
    """The version that one table is restored to. quarantine, retained: the versions of these companions; None if it
    has none. at: the commit time of the version, in seconds since 1970. generations: by flow, the newest one at
    planning time.
    """

    version: int
    quarantine: int | None
    generations: dict[str, int]
    at: float
    retained: int | None = None


@dataclass(frozen=True)
class Rewind(StoredJob):
    """The rewind of a table, and of all below it. It stops the flows that write these."""

    KIND: ClassVar[str] = JobKind.REWIND

    @property
    def moment(self) -> str:
        """To which it goes back, in ISO 8601."""
        return str(self.parameters["moment"])

    @property
    def cut(self) -> dict[str, RestorePoint]:
        """By table, in graph order, the version it is restored to."""
        return {name: RestorePoint(**part) for name, part in self.parameters["cut"].items()}

    @property
    def views(self) -> tuple[str, ...]:
        """The views that are refreshed, in graph order."""
        return tuple(self.parameters["views"])

    @property
    def key(self) -> str:
        """Identifies its commits."""
        return str(self.parameters["key"])

    @property
    def flows(self) -> list[str]:
        """The flows that write the tables it restores."""
        return [flow for part in self.cut.values() for flow in part.generations]

    @property
    def unfinished(self) -> str:
        """Why other jobs have to wait, and the remedy."""
        return (
            f"rewind {self.number} of {self.table} has begun and is not done: end it by spark-submit jobs/rewind.py "
            f"--number {self.number}, or give it up (action give up)"
        )

    @property
    def is_begun(self) -> bool:
        """Whether it may have stopped flows and restored tables."""
        return self.ended_at is None and self.state != PLANNED

    @property
    def has_restored(self) -> bool:
        """Whether it may have restored tables, so that it can only be completed or given up by a person."""
        return self.state not in (PLANNED, STOPPING)


@dataclass(frozen=True)
class PartialRewind:
    """The state in which a rewind is given up. put_back: the tables it has already restored. renewed: the flows that
    still have to begin a new generation after that. stale: by table, why it holds undone rows or lacks rows.
    """

    put_back: Collection[str] = ()
    renewed: Collection[str] = ()
    stale: Mapping[str, str] = field(default_factory=dict)


def plan(
    engine: Engine,
    table: str,
    moment: str,
    cut: Mapping[str, RestorePoint],
    views: Iterable[str],
    requester: str,
    reason: str,
) -> Rewind:
    """Store a new rewind, which begins later. Raises Unreachable."""
    parameters = {"moment": moment, "cut": _cut_json(cut), "views": list(views), "key": uuid.uuid4().hex}
    message = f"to {moment}"
    with database.transaction(engine) as connection:
        number = store.insert_job(
            connection, Rewind.KIND, table, requester, reason=reason, message=message, parameters=parameters
        )
        audit.record(connection, requester, "rewind", table, reason, f"rewind {number} is asked for: {message}")
        return store.read(connection, Rewind, number)


def unfinished(engine: Engine, tables: Collection[str]) -> list[Rewind]:
    """The unfinished rewinds that restore one of these tables. Raises Unreachable."""
    with database.reading(engine) as connection:
        return _begun(connection, tables)


def _begun(connection: Connection, tables: Collection[str]) -> list[Rewind]:
    begun = store.select_jobs(connection, Rewind, jobs.c.ended_at.is_(None), jobs.c.state != PLANNED)
    return [rewind for rewind in begun if not rewind.cut.keys().isdisjoint(tables)]


def blocking_jobs(connection: Connection, tables: Collection[str], excluded: int | None = None) -> list[str]:
    """The unfinished jobs that block these tables, as sentences with the remedy. excluded: the number of a rewind."""
    others = [job for job in _begun(connection, tables) if job.number != excluded]
    return [
        *(f"{job.table}: {job.unfinished}" for job in others),
        *(
            f"{job.table}: backfill {job.number} is in the middle of it: let it end, run it again where it has died, "
            f"or give it up (action give up)"
            for job in store.select_jobs(connection, Backfill, jobs.c.ended_at.is_(None))
            if job.is_held or job.stopped
            if not {job.table, *map(table_of, job.stopped)}.isdisjoint(tables)
        ),
    ]


def require_unblocked(engine: Engine, table: str, is_held: Callable[[str], bool]) -> None:
    """Raises FlowBroken if an unfinished rewind blocks the table, unless the caller holds its lease (`is_held`)."""
    for rewind in unfinished(engine, [table]):
        if not is_held(str(rewind.id)):
            raise FlowBroken(f"{table}: nobody else may write it: {rewind.unfinished}", "REWIND_UNFINISHED")


def stop(engine: Engine, rewind: Rewind) -> None:
    """Set the rewind's flows to stopped, and block its tables for other writers. The state of an earlier try is kept.

    Raises UsageError if another unfinished job blocks one of the tables: neither could end before the other.
    """
    reason = f"rewind {rewind.number} of {rewind.table} to {rewind.moment}"
    with database.transaction(engine) as connection:
        # Two jobs that begin at the same moment would not see each other.
        database.serialize(connection, "jobs")
        if store.read(connection, Rewind, rewind.number).state == PLANNED and (
            blockers := blocking_jobs(connection, rewind.cut, rewind.number)
        ):
            raise UsageError(f"{rewind.table}: rewind {rewind.number} is not begun: {'; '.join(blockers)}")
        held_flows.stop(connection, rewind.id, rewind.flows, rewind.who, reason)
        stored = store.read(connection, Rewind, rewind.number)
        state = STOPPING if stored.state == PLANNED else stored.state
        store.set_state(connection, rewind.id, state, message=f"{len(stored.stopped)} flows end their current batch")
        audit.record(connection, rewind.who, "rewind", rewind.table, rewind.reason, f"begins: to {rewind.moment}")


def restore(engine: Engine, rewind: Rewind, cut: Mapping[str, RestorePoint]) -> None:
    """Store what is restored, after the flows have stopped. From now on the rewind can only be completed."""
    message, parameters = f"{len(cut)} tables are restored", json.dumps({**rewind.parameters, "cut": _cut_json(cut)})
    logs.info(f"{rewind.id}: {RESTORING}: {message}")
    with database.transaction(engine) as connection:
        store.set_state(connection, rewind.id, RESTORING, message=message, parameters=parameters)


def give_up(engine: Engine, rewind: Rewind, message: str, remains: PartialRewind | None = None) -> None:
    """Give up a rewind. Its flows resume, and tables with wrong or missing rows become STALE. remains: None if it has
    restored nothing, and `message` says why it failed.

    One transaction stores all of it, because no flow may start before its new generation is known: on a restored table
    it would resume where it stopped and leave out the undone rows.
    """
    with database.transaction(engine) as connection:
        _end(connection, rewind, GIVEN_UP, message, None if remains else message)
        if remains is None:
            return
        _undo(connection, rewind, remains.put_back)
        for table, reason in remains.stale.items():
            stale_rows.mark_stale(connection, table, Slice(), reason)
        for flow in remains.renewed:
            reset = Reset(flow, accepts_loss=False, who=rewind.who, reason=f"behind rewind {rewind.number}")
            resets.request(connection, reset)


def finish(engine: Engine, rewind: Rewind, message: str, failure: str | None = None) -> None:
    """Complete the rewind. Its flows resume in their new generations. failure: the difference the ledger has found."""
    with database.transaction(engine) as connection:
        _undo(connection, rewind, rewind.cut)
        _end(connection, rewind, DONE, message, failure)


def _undo(connection: Connection, rewind: Rewind, tables: Iterable[str]) -> None:
    """Remove what followed from the undone rows of these tables: STALE marks and unfinished backfills since then."""
    for table in tables:
        restored_at = rewind.cut[table].at
        stale_rows.unmark_since(connection, table, restored_at)
        backfills.close_planned_after(
            connection, table, restored_at, f"rewind {rewind.number} has undone what it followed"
        )


def _end(connection: Connection, rewind: Rewind, state: str, message: str, failure: str | None = None) -> None:
    store.end(connection, rewind, state, message, failure)
    audit.record(connection, rewind.who, "rewind", rewind.table, rewind.reason, f"{state}: {failure or message}")


def _cut_json(cut: Mapping[str, RestorePoint]) -> dict[str, Any]:
    return {name: asdict(part) for name, part in cut.items()}
