"""Incidents: each lasts from the first sick observation until the target has recovered, and is told once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, update

from include.control.decide import State
from include.control.store import database
from include.control.store.schema import incidents

# States that are told even if the target already has an incident of another state.
ALWAYS_TOLD = frozenset({State.BROKEN, State.LAGGING, State.REJECTING, State.NOT_FRESH})

# The prefix of the target of an alarm about a table's file.
DEFINITION = "definition "


@dataclass(frozen=True)
class Incident:
    """target: a flow, the supervisor, or "window", "vacuum" or "definition" and a table. state: names the runbook.
    error: the error class of a BROKEN flow.
    """

    number: int
    target: str
    state: str
    reason: str
    is_over: bool = False
    error: str = ""


def of_definition(table: str) -> str:
    """The target of alarms about the table's file; its flows may have alarms of their own."""
    return f"{DEFINITION}{table}"


def begin(connection: Connection, target: str, state: str, reason: str, error: str = "") -> None:
    """Open an incident. An open one is kept, unless the new state is in `ALWAYS_TOLD` and differs."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    if state in ALWAYS_TOLD:
        is_other = is_open & (incidents.c.state != state)
        connection.execute(update(incidents).where(is_other).values(ended_at=database.now(connection)))
    row = {"target": target, "state": state, "reason": reason, "error": error, "began_at": database.now(connection)}
    connection.execute(database.insert(connection, incidents).values(row).on_conflict_do_nothing())


def end(connection: Connection, target: str) -> None:
    """Close the target's open incident."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    connection.execute(update(incidents).where(is_open).values(ended_at=database.now(connection)))


def open_of(engine: Engine, target: str) -> tuple[Incident, bool] | None:
    """The target's open incident, and whether somebody was told of it. Raises Unreachable."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    with database.reading(engine) as connection:
        row = connection.execute(select(incidents).where(is_open)).one_or_none()
    return (_to_incident(row), row.told_at is not None) if row else None


def settle(connection: Connection, sick: Mapping[str, tuple[str, str, str]], well: Collection[str]) -> None:
    """Do the work of `begin` and `end` for many targets each minute, and write only what has changed.

    sick: by target, state, reason and error of its alarm. well: the targets that have no alarm any more.
    """
    is_open = incidents.c.target.in_([*sick, *well]) & incidents.c.ended_at.is_(None)
    open_states = {row.target: row.state for row in connection.execute(select(incidents).where(is_open))}
    for target, (state, reason, error) in sick.items():
        if target not in open_states or (state in ALWAYS_TOLD and state != open_states[target]):
            begin(connection, target, state, reason, error)
    for target in well:
        if target in open_states:
            end(connection, target)


def targets_in_state(connection: Connection, state: str) -> frozenset[str]:
    """The targets whose open incident has this state."""
    is_open = (incidents.c.state == state) & incidents.c.ended_at.is_(None)
    return frozenset(connection.execute(select(incidents.c.target).where(is_open)).scalars())


def untold(engine: Engine) -> list[Incident]:
    """The incidents that nobody was told of yet, oldest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(
            select(incidents).where(incidents.c.told_at.is_(None)).order_by(incidents.c.number)
        ).all()
    return [_to_incident(row) for row in rows]


def mark_told(engine: Engine, number: int) -> None:
    """Mark the incident as told. Raises Unreachable."""
    with database.transaction(engine) as connection:
        values = {"told_at": database.now(connection)}
        connection.execute(update(incidents).where(incidents.c.number == number).values(values))


def _to_incident(row: Row[Any]) -> Incident:
    return Incident(row.number, row.target, row.state, row.reason, row.ended_at is not None, row.error)
