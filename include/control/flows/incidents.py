"""Incidents of flows, tables, windows and the supervisor, and the alarms that a person has acknowledged."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, update

from include.control.flows.alarms import ALARMS, SENT_AT_ONCE, AlarmKind
from include.control.flows.decide import Decision
from include.control.store import database
from include.control.store.schema import acknowledgements, incidents


@dataclass(frozen=True)
class Incident:
    """subject: a flow, a table, or a part of the platform. state: an `AlarmKind`. error: the error class of a BROKEN
    flow.
    """

    number: int
    subject: str
    state: str
    reason: str
    is_over: bool = False
    error: str = ""

    @property
    def target(self) -> str:
        """Unique among the open incidents."""
        return AlarmKind(self.state).target(self.subject)


def begin(connection: Connection, subject: str, state: str, reason: str, error: str = "") -> None:
    """Open an incident. An open one of the same target is kept, unless the new state is in `SENT_AT_ONCE` and differs.

    state: an `AlarmKind`.
    """
    target = AlarmKind(state).target(subject)
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    if state in SENT_AT_ONCE:
        is_other = is_open & (incidents.c.state != state)
        connection.execute(update(incidents).where(is_other).values(ended_at=database.now(connection)))
    row = {"target": target, "subject": subject, "state": state, "reason": reason, "error": error}
    values = {**row, "began_at": database.now(connection)}
    connection.execute(database.insert(connection, incidents).values(values).on_conflict_do_nothing())


def end(connection: Connection, target: str) -> None:
    """Close the target's open incident."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    connection.execute(update(incidents).where(is_open).values(ended_at=database.now(connection)))


def open_of(engine: Engine, target: str) -> tuple[Incident, bool] | None:
    """The target's open incident, and whether it was sent. Raises Unreachable."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    with database.reading(engine) as connection:
        row = connection.execute(select(incidents).where(is_open)).one_or_none()
    return (_to_incident(row), row.told_at is not None) if row else None


def settle(connection: Connection, unhealthy: Mapping[str, tuple[str, str, str]], healthy: Collection[str]) -> None:
    """Do the work of `begin` and `end` for many targets each minute, and write only what has changed.

    unhealthy: by flow or table, state, reason and error of its alarm. healthy: those that have no alarm any more.
    """
    is_open = incidents.c.target.in_([*unhealthy, *healthy]) & incidents.c.ended_at.is_(None)
    open_states = {row.target: row.state for row in connection.execute(select(incidents).where(is_open))}
    for target, (state, reason, error) in unhealthy.items():
        if target not in open_states or (state in SENT_AT_ONCE and state != open_states[target]):
            begin(connection, target, state, reason, error)
    for target in healthy:
        if target in open_states:
            end(connection, target)


def targets_in_state(connection: Connection, state: str) -> frozenset[str]:
    """The targets whose open incident has this state."""
    is_open = (incidents.c.state == state) & incidents.c.ended_at.is_(None)
    return frozenset(connection.execute(select(incidents.c.target).where(is_open)).scalars())


def unsent(engine: Engine) -> list[Incident]:
    """The incidents that were not sent yet, oldest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(
            select(incidents).where(incidents.c.told_at.is_(None)).order_by(incidents.c.number)
        ).all()
    return [_to_incident(row) for row in rows]


def mark_sent(engine: Engine, number: int) -> None:
    """Mark the incident as sent. Raises Unreachable."""
    with database.transaction(engine) as connection:
        values = {"told_at": database.now(connection)}
        connection.execute(update(incidents).where(incidents.c.number == number).values(values))


def _to_incident(row: Row[Any]) -> Incident:
    # A process of the previous build stores no subject.
    subject = row.subject or row.target.removeprefix(f"{ALARMS[AlarmKind(row.state)].part} ")
    return Incident(row.number, subject, row.state, row.reason, row.ended_at is not None, row.error)


LONGEST_HOURS = 168


@dataclass(frozen=True)
class Acknowledgement:
    """state, error: of the alarm when it was acknowledged. ends_at: in seconds since 1970."""

    state: str
    error: str
    who: str
    reason: str
    ends_at: float

    def covers(self, decision: Decision) -> bool:
        """Whether the decision is about the same trouble, so that nobody has to be notified again."""
        is_same = (decision.state, decision.error) == (self.state, self.error)
        return is_same or (decision.state not in SENT_AT_ONCE and self.state not in SENT_AT_ONCE)

    def __str__(self) -> str:
        until = datetime.fromtimestamp(self.ends_at, UTC)
        return f"acknowledged by {self.who} until {until:%Y-%m-%d %H:%M}Z: {self.reason}"


def acknowledge(
    connection: Connection, target: str, requester: str, reason: str, hours: float
) -> Acknowledgement | None:
    """Acknowledge the target's open alarm, and mark it as sent. Returns None if the target has no open alarm."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    incident = connection.execute(select(incidents).where(is_open)).one_or_none()
    if incident is None:
        return None
    now = database.now(connection)
    values = {"incident": incident.number, "who": requester, "reason": reason, "ends_at": now + hours * 3600}
    statement = database.insert(connection, acknowledgements).values(values)
    connection.execute(statement.on_conflict_do_update(index_elements=["incident"], set_=values))
    is_unsent = (incidents.c.number == incident.number) & incidents.c.told_at.is_(None)
    connection.execute(update(incidents).where(is_unsent).values(told_at=now))
    return Acknowledgement(incident.state, incident.error, requester, reason, values["ends_at"])


def valid_acknowledgements(connection: Connection) -> dict[str, Acknowledgement]:
    """The valid acknowledgements of open alarms, by target."""
    is_valid = incidents.c.ended_at.is_(None) & (acknowledgements.c.ends_at > database.now(connection))
    rows = connection.execute(
        select(incidents.c.target, incidents.c.state, incidents.c.error, acknowledgements)
        .join(acknowledgements, acknowledgements.c.incident == incidents.c.number)
        .where(is_valid)
    )
    return {row.target: Acknowledgement(row.state, row.error, row.who, row.reason, row.ends_at) for row in rows}
