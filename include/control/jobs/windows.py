"""The kind of jobs that keep a table in shape: windows, each with its effect on the table and on the table's flows."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

from sqlalchemy import Connection, Engine, Row, insert, select

from include.control.jobs import store
from include.control.jobs.store import DONE, FAILED, StoredJob
from include.control.leases import lease
from include.control.leases.lock import CONDITIONAL, LockRequest
from include.control.leases.process import Holder
from include.control.store import database, job_events, job_id
from include.control.store.job_id import JobKind
from include.control.store.job_schema import jobs
from include.control.store.schema import leases, pauses

ASKED, OPEN = "asked", "open"
DIED = "; its job died"


@dataclass(frozen=True)
class TableSize:
    """The size of a table at one version. small_files: the files that compaction would rewrite."""

    version: int
    files: int
    bytes: int
    small_files: int
    rows: int | None

    @property
    def small_ratio(self) -> float:
        """The share of small files, from 0 to 1."""
        return self.small_files / self.files if self.files else 0


@dataclass(frozen=True)
class GateWait:
    """How long a flow waited at the gate for a window. beyond_seconds: the part of it outside the open window."""

    flow: str
    seconds: float
    beyond_seconds: float


@dataclass(frozen=True)
class Window(StoredJob):
    """asked_at, opened_at: when it last entered these states; None: never. pauses: the waits that it has caused.

    Its message is the step that it executes: merge, optimize, vacuum or log cleanup. If its job died, it has FAILED,
    and ended_at is None.
    """

    KIND: ClassVar[str] = JobKind.WINDOW

    asked_at: float | None = None
    opened_at: float | None = None
    pauses: tuple[GateWait, ...] = ()

    @classmethod
    def of(cls, connection: Connection, row: Row[Any]) -> Self:
        window = super().of(connection, row)
        if window.state in (ASKED, OPEN) and not window.is_at_work:
            window = replace(window, state=FAILED, reason=f"{window.reason}{DIED}")
        if row.epoch is None:
            return window
        times = job_events.newest_times(connection, window.id)
        window = replace(window, asked_at=times.get(ASKED), opened_at=times.get(OPEN))
        query = select(pauses).where((pauses.c.target == row.target) & (pauses.c.epoch == row.epoch))
        waits = connection.execute(query.order_by(pauses.c.number))
        return replace(window, pauses=tuple(_to_wait(window, pause) for pause in waits))

    @property
    def progress(self) -> str:
        return f"{self.table}: {self.message or self.state}"

    @property
    def bytes_rewritten(self) -> float:
        """By its compaction, as it was planned; 0 where an older build planned it."""
        return float(self.parameters.get("bytes_rewritten", 0))

    @property
    def before(self) -> TableSize | None:
        """The table's size when it was opened; None if the table was not stored, or it was never opened."""
        return _to_size(self.outcome.get("before"))

    @property
    def after(self) -> TableSize | None:
        """The table's size when it was closed; None before."""
        return _to_size(self.outcome.get("after"))


def plan(engine: Engine, table: str, requester: str, reason: str, is_worth_it: bool, bytes_rewritten: float = 0) -> int:
    """Store a window as planned, or as skipped if it is not worth it. Returns its number. Raises Unreachable.

    bytes_rewritten: by its compaction.
    """
    parameters = {"bytes_rewritten": bytes_rewritten} if bytes_rewritten else None
    return store.plan(
        engine, Window, table, requester, reason=reason, skipped=not is_worth_it, parameters=parameters
    ).number


def request(engine: Engine, number: int, table: str, epoch: int) -> None:
    """Set the window to asked. Its job holds the table's window lease, and waits until the writers inside have left."""
    with database.transaction(engine) as connection:
        # Only the holder of the lease gets here, so the jobs of earlier windows are dead.
        is_begun = (jobs.c.kind == JobKind.WINDOW) & jobs.c.state.in_((ASKED, OPEN)) & jobs.c.ended_at.is_(None)
        is_other = (jobs.c.target == table) & (jobs.c.number != number)
        for dead in connection.execute(select(jobs).where(is_begun, is_other)).all():
            store.set_state(connection, job_id.window(dead.number), FAILED, reason=f"{dead.reason}{DIED}")
        store.set_state(connection, job_id.window(number), ASKED, epoch=epoch, ended_at=None)


def open_(engine: Engine, number: int, before: TableSize | None) -> None:
    """Set the window to open: it has the table to itself. before: the table's size; None if it is not stored yet."""
    with database.transaction(engine) as connection:
        store.set_state(connection, job_id.window(number), OPEN, outcome=_to_json(before, None))


def begin_step(engine: Engine, number: int, step: str) -> None:
    """Store the step that the window executes."""
    with database.transaction(engine) as connection:
        store.update_job(connection, job_id.window(number), message=step)


def close(engine: Engine, number: int, after: TableSize | None) -> None:
    """Set the window to done. after: the table's size; None if it is not stored."""
    with database.transaction(engine) as connection:
        window = store.read(connection, Window, number)
        outcome = _to_json(window.before, after)
        store.set_state(connection, window.id, DONE, outcome=outcome, ended_at=database.now(connection))


def close_unfinished(engine: Engine, number: int, state: str, reason: str) -> None:
    """Close the window as skipped or failed."""
    with database.transaction(engine) as connection:
        now = database.now(connection)
        store.set_state(connection, job_id.window(number), state, reason=reason, ended_at=now)


def record_pause(connection: Connection, request: LockRequest, epoch: int, began_at: float, ended_at: float) -> None:
    """Store how long a flow waited at the gate. began_at and ended_at are seconds since 1970."""
    values = {"flow": request.name, "target": request.table, "epoch": epoch, "began_at": began_at, "ended_at": ended_at}
    connection.execute(insert(pauses).values(values))


def open_windows(connection: Connection, tables: Collection[str]) -> dict[str, str]:
    """By table, a description of the open window that its flows wait for. Tables without one are absent."""
    table_of_lease, now_seconds = {lease.window_lease(table): table for table in tables}, database.now(connection)
    is_held = leases.c.flow.in_(table_of_lease) & (leases.c.expires_at > now_seconds)
    return {
        row.writes: f"a window has {row.writes} to itself for {now_seconds - row.wanted_at:.0f} s "
        f"({Holder.from_json(row.holder)})"
        for row in connection.execute(select(leases).where(is_held))
        if row.writes == table_of_lease[row.flow] and row.mode != CONDITIONAL
    }


def _to_size(stored: dict[str, Any] | None) -> TableSize | None:
    return TableSize(**stored) if stored else None


def _to_json(before: TableSize | None, after: TableSize | None) -> str:
    return json.dumps({"before": before and asdict(before), "after": after and asdict(after)})


def _to_wait(window: Window, pause: Row[Any]) -> GateWait:
    seconds = pause.ended_at - pause.began_at
    opened_at, closed_at = window.opened_at or pause.ended_at, window.ended_at or pause.ended_at
    overlap_seconds = min(pause.ended_at, closed_at) - max(pause.began_at, opened_at)
    return GateWait(pause.flow, seconds, seconds - max(overlap_seconds, 0))
