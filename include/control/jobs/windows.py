"""The calendar of windows: planned, asked for, open, done, skipped and failed, each with its reason and its effect."""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, insert, select, update

from include.control import lease
from include.control.lock import LockRequest
from include.control.process import Holder
from include.control.store import database
from include.control.store.schema import leases, pauses, windows


@dataclass(frozen=True)
class Shape:
    """A table at one version. small_files: those that compaction would take."""

    version: int
    files: int
    bytes: int
    small_files: int
    rows: int | None

    @property
    def small_ratio(self) -> float:
        """From 0 to 1."""
        return self.small_files / self.files if self.files else 0


@dataclass(frozen=True)
class Pause:
    """How long a flow stood at the gate for a window. beyond_seconds: of that, while no window was open."""

    flow: str
    seconds: float
    beyond_seconds: float


@dataclass(frozen=True)
class Window:
    """One line of the calendar; moments are seconds since 1970 by the control database's clock."""

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
    before: Shape | None
    after: Shape | None
    pauses: tuple[Pause, ...]


def plan(engine: Engine, table: str, who: str, why: str, is_worth_it: bool) -> int:
    """Enter a window that is planned, or one that is skipped; returns its number."""
    state = "planned" if is_worth_it else "skipped"
    with database.transaction(engine) as connection:
        values = {"target": table, "state": state, "who": who, "why": why, "planned_at": database.now(connection)}
        return int(connection.execute(insert(windows).values(values).returning(windows.c.number)).scalar_one())


def ask(engine: Engine, number: int, table: str, epoch: int) -> None:
    """Its job holds the table's window lease, and waits for those inside to leave."""
    with database.transaction(engine) as connection:
        # Nobody else can have this lease now, so whoever was before has died.
        left = (windows.c.target == table) & windows.c.state.in_(("asked", "open")) & (windows.c.number != number)
        connection.execute(update(windows).where(left).values(state="failed", why=windows.c.why + "; its job died"))
        _set(connection, number, state="asked", epoch=epoch, asked_at=database.now(connection))


def open_(engine: Engine, number: int, before: Shape | None) -> None:
    """The table belongs to the window alone. before: None where it is not stored yet."""
    with database.transaction(engine) as connection:
        values = {"opened_at": database.now(connection), "before": json.dumps(asdict(before)) if before else None}
        _set(connection, number, state="open", **values)


def begin_step(engine: Engine, number: int, step: str) -> None:
    """It merges, optimizes, vacuums or cleans the log now."""
    with database.transaction(engine) as connection:
        _set(connection, number, step=step)


def close(engine: Engine, number: int, after: Shape) -> None:
    """It is done, and others may write again in a moment."""
    with database.transaction(engine) as connection:
        values = {"closed_at": database.now(connection), "after": json.dumps(asdict(after))}
        _set(connection, number, state="done", **values)


def end(engine: Engine, number: int, state: str, why: str) -> None:
    """It came to nothing: skipped or failed."""
    with database.transaction(engine) as connection:
        _set(connection, number, state=state, why=why, closed_at=database.now(connection))


def record_pause(connection: Connection, entry: LockRequest, epoch: int, began_at: float, ended_at: float) -> None:
    """A flow stood at the gate of its table until it was let through."""
    values = {"flow": entry.name, "target": entry.table, "epoch": epoch, "began_at": began_at, "ended_at": ended_at}
    connection.execute(insert(pauses).values(values))


def calendar(engine: Engine, table: str | None = None, limit: int = 50) -> list[Window]:
    """The newest windows, newest first. Raises Unreachable."""
    chosen = windows.c.target == table if table else windows.c.number > 0
    with database.reading(engine) as connection:
        rows = connection.execute(select(windows).where(chosen).order_by(windows.c.number.desc()).limit(limit)).all()
        return [_window(connection, row) for row in rows]


def find(engine: Engine, number: int) -> Window | None:
    """One of them. Raises Unreachable."""
    with database.reading(engine) as connection:
        row = connection.execute(select(windows).where(windows.c.number == number)).one_or_none()
        return _window(connection, row) if row else None


def open_of(connection: Connection, tables: Collection[str]) -> dict[str, str]:
    """By table, the window that its flows wait for, in words; without the tables that have none."""
    table_of_lease, now = {lease.of_window(table): table for table in tables}, database.now(connection)
    held = leases.c.flow.in_(table_of_lease) & (leases.c.expires_at > now)
    return {
        row.writes: f"a window has {row.writes} to itself for {now - row.wanted_at:.0f} s "
        f"({Holder.from_json(row.holder)})"
        for row in connection.execute(select(leases).where(held))
        if row.writes == table_of_lease[row.flow]
    }


def _set(connection: Connection, number: int, **values: Any) -> None:
    connection.execute(update(windows).where(windows.c.number == number).values(values))


def _window(connection: Connection, row: Row[Any]) -> Window:
    state, why = row.state, row.why
    if state in ("asked", "open") and not _is_held(connection, row):
        state, why = "failed", f"{why}; its job died"
    before, after = (Shape(**json.loads(text)) if text else None for text in (row.before, row.after))
    paused = select(pauses).where((pauses.c.target == row.target) & (pauses.c.epoch == row.epoch))
    found = tuple(_pause(row, one) for one in connection.execute(paused.order_by(pauses.c.number)))
    moments = (row.planned_at, row.asked_at, row.opened_at, row.closed_at)
    return Window(row.number, row.target, state, row.who, why, row.step, *moments, before, after, found)


def _is_held(connection: Connection, row: Row[Any]) -> bool:
    same = (leases.c.flow == lease.of_window(row.target)) & (leases.c.epoch == row.epoch)
    held = connection.execute(select(leases.c.expires_at).where(same)).scalar_one_or_none()
    return held is not None and bool(held > database.now(connection))


def _pause(window: Row[Any], pause: Row[Any]) -> Pause:
    seconds = pause.ended_at - pause.began_at
    opened_at, closed_at = window.opened_at or pause.ended_at, window.closed_at or pause.ended_at
    inside = min(pause.ended_at, closed_at) - max(pause.began_at, opened_at)
    return Pause(pause.flow, seconds, seconds - max(inside, 0))
