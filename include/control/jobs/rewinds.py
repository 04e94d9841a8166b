"""The stored state of rewinds: the approved plan, the phase of each, and the flows it has stopped.

If a job dies during a rewind, the next try completes it from this state. Until it has ended, nobody else writes the
tables it restores.
"""

import json
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, Row, insert, select, update

from include import logs
from include.control import audit, lease, resets
from include.control.jobs import backfills, held_flows, job_id, stale_tables
from include.control.resets import Reset
from include.control.store import database
from include.control.store.job_schema import approvals, rewinds
from include.errors import FlowBroken, UsageError
from include.project.ranges import Slice
from include.spec import table_of

PLANNED, STOPPING, RESTORING = "planned", "stopping", "restoring"
REFRESHING, BEGINNING, DONE, GIVEN_UP = "refreshing", "beginning", "done", "given up"


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
class Rewind:
    """cut: by table, in graph order, the version it is restored to. stopped: the flows it has stopped, each with the
    state and reason wanted before. is_held: its job is alive.

    Times are seconds since 1970 by the control database's clock, but `moment` is ISO 8601.
    """

    number: int
    table: str
    moment: str
    cut: dict[str, RestorePoint]
    views: tuple[str, ...]
    key: str
    who: str
    reason: str
    phase: str
    message: str
    failure: str | None
    stopped: dict[str, tuple[str, str]]
    planned_at: float
    phase_at: float
    ended_at: float | None
    is_held: bool

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
        return self.ended_at is None and self.phase != PLANNED


@dataclass(frozen=True)
class PartialRewind:
    """The state in which a rewind is given up. put_back: the tables it has already restored. renewed: the flows that
    still have to begin a new generation after that. stale: by table, why it holds undone rows or lacks rows.
    """

    put_back: Collection[str] = ()
    renewed: Collection[str] = ()
    stale: Mapping[str, str] = field(default_factory=dict)


def lease_name(number: int) -> str:
    """The name of the lease that the rewind's job holds while it is alive."""
    return str(job_id.rewind(number))


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
    with database.transaction(engine) as connection:
        now, key = database.now(connection), uuid.uuid4().hex
        values: dict[str, Any] = {"target": table, "moment": moment, "cut": _cut_json(cut), "key": key}
        values |= {"views": json.dumps(list(views)), "who": requester, "reason": reason}
        values |= {"phase": PLANNED, "said": f"to {moment}", "planned_at": now, "phase_at": now}
        number = int(connection.execute(insert(rewinds).values(values).returning(rewinds.c.number)).scalar_one())
        return _read(connection, number)


def get(engine: Engine, number: int) -> Rewind:
    """Raises UsageError if no rewind has this number, and Unreachable."""
    with database.reading(engine) as connection:
        return _read(connection, number)


def unfinished(engine: Engine, tables: Collection[str]) -> list[Rewind]:
    """The unfinished rewinds that restore one of these tables. Raises Unreachable."""
    with database.reading(engine) as connection:
        return _begun(connection, tables)


def _begun(connection: Connection, tables: Collection[str]) -> list[Rewind]:
    is_unfinished = rewinds.c.ended_at.is_(None) & (rewinds.c.phase != PLANNED)
    rows = connection.execute(select(rewinds).where(is_unfinished).order_by(rewinds.c.number)).all()
    return [rewind for row in rows if set(tables) & set((rewind := _to_rewind(connection, row)).cut)]


def blocking_jobs(connection: Connection, tables: Collection[str], excluded: int | None = None) -> list[str]:
    """The unfinished jobs that block these tables, as sentences with the remedy. excluded: the number of a rewind."""
    others = [job for job in _begun(connection, tables) if job.number != excluded]
    return [
        *(f"{job.table}: {job.unfinished}" for job in others),
        *(
            f"{job.table}: backfill {job.number} is in the middle of it: let it end, run it again where it has died, "
            f"or give it up (action give up)"
            for job in backfills.active(connection)
            if not {job.table, *map(table_of, job.readers)}.isdisjoint(tables)
        ),
    ]


def newest(engine: Engine, limit: int = 20) -> list[Rewind]:
    """The newest rewinds, newest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(rewinds).order_by(rewinds.c.number.desc()).limit(limit)).all()
        return [_to_rewind(connection, row) for row in rows]


def require_unblocked(engine: Engine, table: str, is_held: Callable[[str], bool]) -> None:
    """Raises FlowBroken if an unfinished rewind blocks the table, unless the caller holds its lease (`is_held`)."""
    for rewind in unfinished(engine, [table]):
        if not is_held(lease_name(rewind.number)):
            raise FlowBroken(f"{table}: nobody else may write it: {rewind.unfinished}", "REWIND_UNFINISHED")


def set_phase(engine: Engine, number: int, phase: str, message: str) -> None:
    """Store the phase and a progress message, and log them. Raises Unreachable."""
    logs.info(f"rewind {number}: {phase}: {message}")
    with database.transaction(engine) as connection:
        _update(connection, number, phase=phase, said=message, failure=None, phase_at=database.now(connection))


def stop(engine: Engine, rewind: Rewind) -> None:
    """Set the rewind's flows to stopped, and block its tables for other writers. The phase of an earlier try is kept.

    Raises UsageError if another unfinished job blocks one of the tables: neither could end before the other.
    """
    reason = f"rewind {rewind.number} of {rewind.table} to {rewind.moment}"
    with database.transaction(engine) as connection:
        # Two jobs that begin at the same moment would not see each other.
        database.serialize(connection, "jobs")
        if _read(connection, rewind.number).phase == PLANNED and (
            blockers := blocking_jobs(connection, rewind.cut, rewind.number)
        ):
            raise UsageError(f"{rewind.table}: rewind {rewind.number} is not begun: {'; '.join(blockers)}")
        held_flows.stop(connection, job_id.rewind(rewind.number), rewind.flows, rewind.who, reason)
        stored = _read(connection, rewind.number)
        phase = STOPPING if stored.phase == PLANNED else stored.phase
        message, now = f"{len(stored.stopped)} flows end their current batch", database.now(connection)
        _update(connection, rewind.number, phase=phase, said=message, failure=None, phase_at=now)
        audit.record(connection, rewind.who, "rewind", rewind.table, rewind.reason, f"begins: to {rewind.moment}")


def restore(engine: Engine, rewind: Rewind, cut: Mapping[str, RestorePoint]) -> None:
    """Store what is restored, after the flows have stopped. From now on the rewind can only be completed."""
    with database.transaction(engine) as connection:
        _update(connection, rewind.number, cut=_cut_json(cut))
    set_phase(engine, rewind.number, RESTORING, f"{len(cut)} tables are restored")


def record_failure(engine: Engine, rewind: Rewind, failure: str) -> None:
    """Store a failure from after the first RESTORE. The flows stay stopped until a retry completes the rewind."""
    with database.transaction(engine) as connection:
        _update(connection, rewind.number, failure=failure)


def give_up(engine: Engine, rewind: Rewind, message: str, remains: PartialRewind | None = None) -> None:
    """Give up a rewind. Its flows resume, and tables with wrong or missing rows become STALE. remains: None if it has
    restored nothing, and `message` says why it failed.

    One transaction stores all of it, because no flow may start before its new generation is known: on a restored table
    it would resume where it stopped and leave out the undone rows.
    """
    with database.transaction(engine) as connection:
        _close(connection, rewind, GIVEN_UP, message, None if remains else message)
        if remains is None:
            return
        _undo(connection, rewind, remains.put_back)
        for table, reason in remains.stale.items():
            stale_tables.mark(connection, table, Slice(), reason)
        for flow in remains.renewed:
            reset = Reset(flow, accepts_loss=False, who=rewind.who, reason=f"behind rewind {rewind.number}")
            resets.request(connection, reset)


def finish(engine: Engine, rewind: Rewind, message: str, failure: str | None = None) -> None:
    """Complete the rewind. Its flows resume in their new generations. failure: the difference the ledger has found."""
    with database.transaction(engine) as connection:
        _undo(connection, rewind, rewind.cut)
        _close(connection, rewind, DONE, message, failure)


def _undo(connection: Connection, rewind: Rewind, tables: Iterable[str]) -> None:
    """Remove what followed from the undone rows of these tables: STALE marks and unfinished backfills since then."""
    for table in tables:
        restored_at = rewind.cut[table].at
        stale_tables.unmark_since(connection, table, restored_at)
        backfills.close_planned_after(
            connection, table, restored_at, f"rewind {rewind.number} has undone what it followed"
        )


def _close(connection: Connection, rewind: Rewind, phase: str, message: str, failure: str | None = None) -> None:
    """Close the rewind in this phase, and restore what was wanted of its flows."""
    held_flows.resume(connection, job_id.rewind(rewind.number), rewind.who)
    now = database.now(connection)
    _update(connection, rewind.number, phase=phase, said=message, failure=failure, phase_at=now, ended_at=now)
    audit.record(connection, rewind.who, "rewind", rewind.table, rewind.reason, f"{phase}: {failure or message}")


def _cut_json(cut: Mapping[str, RestorePoint]) -> str:
    return json.dumps({name: asdict(part) for name, part in cut.items()})


def _update(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(rewinds).where(rewinds.c.number == number).values(values))


def _read(connection: Connection, number: int) -> Rewind:
    row = connection.execute(select(rewinds).where(rewinds.c.number == number)).one_or_none()
    if row is None:
        raise UsageError(f"there is no rewind {number}: `sluice jobs --kind rewind` lists them")
    return _to_rewind(connection, row)


def _to_rewind(connection: Connection, row: Row[Any]) -> Rewind:
    cut = {name: RestorePoint(**part) for name, part in json.loads(row.cut).items()}
    stopped = held_flows.parse(row.stopped)
    is_held = lease_name(row.number) in lease.alive(connection)
    return Rewind(
        *(row.number, row.target, row.moment, cut, tuple(json.loads(row.views)), row.key, row.who, row.reason),
        *(row.phase, row.said, row.failure, stopped, row.planned_at, row.phase_at, row.ended_at, is_held),
    )


def approve(engine: Engine, rewind: Rewind, approver: str) -> None:
    """Record that a rewind may begin, and who approved it, in the table `approval` and in the audit. Raises
    Unreachable.
    """
    with database.transaction(engine) as connection:
        values = {"job": lease_name(rewind.number), "who": approver, "at": database.now(connection)}
        connection.execute(database.insert(connection, approvals).values(values).on_conflict_do_nothing())
        audit.record(
            connection, rewind.who, "rewind", rewind.table, rewind.reason, f"to {rewind.moment}: approved by {approver}"
        )


def require(engine: Engine, rewind: Rewind) -> None:
    """Raises UsageError if nobody has approved the rewind. A rewind that has begun needs no approval to complete."""
    if rewind.is_begun:
        return
    with database.reading(engine) as connection:
        approval = select(approvals.c.who).where(approvals.c.job == lease_name(rewind.number))
        if connection.execute(approval).first() is None:
            raise UsageError(
                f"{rewind.table}: rewind {rewind.number} is not begun, as nobody has approved it: approve it in "
                f"Airflow, or begin it with --approved-by NAME"
            )
