"""The calendar of maintenance windows: each with its state, its reason and its effect on the table."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, insert, select, update

from include.control import lease
from include.control.jobs import job_id, queue
from include.control.jobs.queue import JobStatus
from include.control.lock import CONDITIONAL, LockRequest
from include.control.process import Holder
from include.control.store import database
from include.control.store.schema import leases, pauses, windows


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
class Window:
    """One row of the calendar. Times are seconds since 1970 by the control database's clock."""

    number: int
    table: str
    state: str
    who: str
    why: str
    step: str | None
    planned_at: float
    asked_at: float | None
    opened_at: float | None
    closed_at: float | None
    before: TableSize | None
    after: TableSize | None
    pauses: tuple[GateWait, ...]


def plan(engine: Engine, table: str, requester: str, reason: str, is_worth_it: bool) -> int:
    """Store a window as planned, or as skipped if it is not worth it. Returns its number. Raises Unreachable."""
    state = "planned" if is_worth_it else "skipped"
    with database.transaction(engine) as connection:
        values = {
            "target": table,
            "state": state,
            "who": requester,
            "why": reason,
            "planned_at": database.now(connection),
        }
        return int(connection.execute(insert(windows).values(values).returning(windows.c.number)).scalar_one())


def request(engine: Engine, number: int, table: str, epoch: int) -> None:
    """Set the window to asked. Its job holds the table's window lease, and waits until the writers inside have left."""
    with database.transaction(engine) as connection:
        # Only the holder of the lease gets here, so the jobs of earlier windows are dead.
        orphaned = (windows.c.target == table) & windows.c.state.in_(("asked", "open")) & (windows.c.number != number)
        connection.execute(update(windows).where(orphaned).values(state="failed", why=windows.c.why + "; its job died"))
        _update(connection, number, state="asked", epoch=epoch, asked_at=database.now(connection))


def open_(engine: Engine, number: int, before: TableSize | None) -> None:
    """Set the window to open: it has the table to itself. before: the table's size; None if it is not stored yet."""
    with database.transaction(engine) as connection:
        values = {"opened_at": database.now(connection), "before": json.dumps(asdict(before)) if before else None}
        _update(connection, number, state="open", **values)


def begin_step(engine: Engine, number: int, step: str) -> None:
    """Store the step that the window executes: merge, optimize, vacuum or log cleanup."""
    with database.transaction(engine) as connection:
        _update(connection, number, step=step)


def close(engine: Engine, number: int, after: TableSize) -> None:
    """Set the window to done. after: the table's size."""
    with database.transaction(engine) as connection:
        values = {"closed_at": database.now(connection), "after": json.dumps(asdict(after))}
        _update(connection, number, state="done", **values)


def close_unfinished(engine: Engine, number: int, state: str, reason: str) -> None:
    """Close the window as skipped or failed."""
    with database.transaction(engine) as connection:
        _update(connection, number, state=state, why=reason, closed_at=database.now(connection))


def record_pause(connection: Connection, request: LockRequest, epoch: int, began_at: float, ended_at: float) -> None:
    """Store how long a flow waited at the gate. began_at and ended_at are seconds since 1970."""
    values = {"flow": request.name, "target": request.table, "epoch": epoch, "began_at": began_at, "ended_at": ended_at}
    connection.execute(insert(pauses).values(values))


def calendar(engine: Engine, table: str | None = None, limit: int = 50) -> list[Window]:
    """The newest windows, newest first. Raises Unreachable."""
    selected = windows.c.target == table if table else windows.c.number > 0
    with database.reading(engine) as connection:
        rows = connection.execute(select(windows).where(selected).order_by(windows.c.number.desc()).limit(limit)).all()
        return [_to_window(connection, row) for row in rows]


def find(engine: Engine, number: int) -> Window | None:
    """Returns None if no window has this number. Raises Unreachable."""
    with database.reading(engine) as connection:
        row = connection.execute(select(windows).where(windows.c.number == number)).one_or_none()
        return _to_window(connection, row) if row else None


def status(engine: Engine, number: int) -> JobStatus:
    """The status of a requested window, for the task that waits for it. A failed window is done too: its row in the
    calendar names the failure. Raises Unreachable.
    """
    with database.reading(engine) as connection:
        waits = queue.waiting(connection, job_id.window(number))
    if waits:
        return waits
    window = find(engine, number)
    if window is None:
        return JobStatus("it was never planned", failure=f"nobody planned window {number}")
    if window.state in ("asked", "open"):
        return JobStatus(f"{window.table}: {window.step or window.state}", is_in_hand=True)
    if window.state == "planned":
        return JobStatus("no driver has opened it")
    if window.state == "failed" and window.closed_at is None:
        return JobStatus("its driver died", failure=window.why)
    return JobStatus(f"it is {window.state}", is_done=True)


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


def _update(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(windows).where(windows.c.number == number).values(values))


def _to_window(connection: Connection, row: Row[Any]) -> Window:
    state, reason = row.state, row.why
    if state in ("asked", "open") and not _is_held(connection, row):
        state, reason = "failed", f"{reason}; its job died"
    before, after = (TableSize(**json.loads(text)) if text else None for text in (row.before, row.after))
    query = select(pauses).where((pauses.c.target == row.target) & (pauses.c.epoch == row.epoch))
    waited = tuple(_to_pause(row, pause) for pause in connection.execute(query.order_by(pauses.c.number)))
    moments = (row.planned_at, row.asked_at, row.opened_at, row.closed_at)
    return Window(row.number, row.target, state, row.who, reason, row.step, *moments, before, after, waited)


def _is_held(connection: Connection, row: Row[Any]) -> bool:
    is_lease = (leases.c.flow == lease.window_lease(row.target)) & (leases.c.epoch == row.epoch)
    expires_at = connection.execute(select(leases.c.expires_at).where(is_lease)).scalar_one_or_none()
    return expires_at is not None and bool(expires_at > database.now(connection))


def _to_pause(window: Row[Any], pause: Row[Any]) -> GateWait:
    seconds = pause.ended_at - pause.began_at
    opened_at, closed_at = window.opened_at or pause.ended_at, window.closed_at or pause.ended_at
    overlap_seconds = min(pause.ended_at, closed_at) - max(pause.began_at, opened_at)
    return GateWait(pause.flow, seconds, seconds - max(overlap_seconds, 0))
