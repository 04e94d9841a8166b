"""Incidents: one from the moment something is sick until it has been well for a while. Each is told once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, update

from include.control.decide import State
from include.control.store import database
from include.control.store.schema import incidents

# What is worth being told although something else was wrong before.
NEWS = frozenset({State.BROKEN, State.LAGGING, State.REJECTING, State.NOT_FRESH})

# What begins the target of an alarm about a table's file.
DEFINITION = "definition "


@dataclass(frozen=True)
class Incident:
    """target: a flow, the supervisor, or "window", "vacuum" or "definition" and a table. state: its name, by which its
    runbook is called. error: the class of the error that left it BROKEN.
    """

    number: int
    target: str
    state: str
    reason: str
    is_over: bool = False
    error: str = ""


def of_definition(table: str) -> str:
    """The target of the alarm of a table's file: its flows may have alarms of their own."""
    return f"{DEFINITION}{table}"


def begin(connection: Connection, target: str, state: str, reason: str, error: str = "") -> None:
    """Open an incident, unless one is open; that one is kept, except where a person has to act now and had not to."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    if state in NEWS:
        other = is_open & (incidents.c.state != state)
        connection.execute(update(incidents).where(other).values(ended_at=database.now(connection)))
    row = {"target": target, "state": state, "reason": reason, "error": error, "began_at": database.now(connection)}
    connection.execute(database.insert(connection, incidents).values(row).on_conflict_do_nothing())


def end(connection: Connection, target: str) -> None:
    """Close what is open."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    connection.execute(update(incidents).where(is_open).values(ended_at=database.now(connection)))


def open_of(engine: Engine, target: str) -> tuple[Incident, bool] | None:
    """The target's open incident, and whether anybody was told of it. Raises Unreachable."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    with database.reading(engine) as connection:
        row = connection.execute(select(incidents).where(is_open)).one_or_none()
    return (_incident(row), row.told_at is not None) if row else None


def settle(connection: Connection, sick: Mapping[str, tuple[str, str, str]], well: Collection[str]) -> None:
    """As `begin` and `end` for many that are looked at each minute: nothing is written where nothing has changed.

    sick: by target, the state, reason and error of its alarm. well: the targets that have none any more.
    """
    is_open = incidents.c.target.in_([*sick, *well]) & incidents.c.ended_at.is_(None)
    before = {row.target: row.state for row in connection.execute(select(incidents).where(is_open))}
    for target, (state, reason, error) in sick.items():
        if target not in before or (state in NEWS and state != before[target]):
            begin(connection, target, state, reason, error)
    for target in well:
        if target in before:
            end(connection, target)


def of_state(connection: Connection, state: str) -> frozenset[str]:
    """The targets whose open alarm is in this state."""
    is_open = (incidents.c.state == state) & incidents.c.ended_at.is_(None)
    return frozenset(connection.execute(select(incidents.c.target).where(is_open)).scalars())


def untold(engine: Engine) -> list[Incident]:
    """Those that nobody was notified of yet, oldest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        found = connection.execute(
            select(incidents).where(incidents.c.told_at.is_(None)).order_by(incidents.c.number)
        ).all()
    return [_incident(row) for row in found]


def tell(engine: Engine, number: int) -> None:
    """Somebody was notified. Raises Unreachable."""
    with database.transaction(engine) as connection:
        told = {"told_at": database.now(connection)}
        connection.execute(update(incidents).where(incidents.c.number == number).values(told))


def _incident(row: Row[Any]) -> Incident:
    return Incident(row.number, row.target, row.state, row.reason, row.ended_at is not None, row.error)
