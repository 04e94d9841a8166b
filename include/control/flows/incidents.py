"""Incidents of flows, tables, windows and the supervisor, and the alarms that a person has acknowledged."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Engine, Row, func, select, update

from include.control.flows.alarms import ALARMS, SENT_AT_ONCE, AlarmKind, severity
from include.control.flows.decide import Decision, driver_of
from include.control.store import database
from include.control.store.schema import acknowledgements, incidents

# What keeps a flow from running is the cause itself, and other kinds may follow from it.
OF_CAUSE = frozenset({AlarmKind.BROKEN, AlarmKind.STUCK, AlarmKind.BACKING_OFF, AlarmKind.JOB_FAILED})
# What a start can cure.
OF_RUN = frozenset({AlarmKind.BROKEN, AlarmKind.STUCK, AlarmKind.BACKING_OFF})


class Finding(NamedTuple):
    """What is wrong with a flow or table. state: an `AlarmKind`. error: the error class of a BROKEN flow. cause: which
    others share, such as `driver main`; empty: the trouble is its own.
    """

    state: str
    reason: str
    error: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Incident:
    """subject: a flow, a table, or a part of the platform. state: an `AlarmKind`. error: the error class of a BROKEN
    flow. shared_cause: as `Finding.cause`. began_at, told_at, ended_at: in seconds since 1970; None: not yet.
    """

    number: int
    subject: str
    state: str
    reason: str
    is_over: bool = False
    error: str = ""
    shared_cause: str = ""
    began_at: float = 0
    told_at: float | None = None
    ended_at: float | None = None

    @property
    def cause(self) -> str:
        """What incidents of one message have in common; by default the target."""
        return self.shared_cause or self.target

    @property
    def about(self) -> str:
        """What a title names: the cause, or a target that is only late by it."""
        return self.cause if self.state in OF_CAUSE else self.target

    @property
    def driver(self) -> str:
        """That is to blame; empty if none is."""
        return driver_of(self.shared_cause)

    @property
    def target(self) -> str:
        """Unique among the open incidents."""
        return AlarmKind(self.state).target(self.subject)


def begin(
    connection: Connection, subject: str, state: str, reason: str, error: str = "", cause: str | None = None
) -> None:
    """Open an incident. An open one of the same target is kept, unless the new state is in `SENT_AT_ONCE` and differs.

    state: an `AlarmKind`. cause: as `Finding.cause`.
    """
    target = AlarmKind(state).target(subject)
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    told_at = _told_at(connection, cause) if cause else None
    if state in SENT_AT_ONCE:
        is_other = is_open & (incidents.c.state != state)
        connection.execute(update(incidents).where(is_other).values(ended_at=database.now(connection)))
    row = {"target": target, "subject": subject, "state": state, "reason": reason, "error": error}
    values = {**row, "cause": cause or None, "began_at": database.now(connection), "told_at": told_at}
    connection.execute(database.insert(connection, incidents).values(values).on_conflict_do_nothing())


def _told_at(connection: Connection, cause: str) -> float | None:
    """When the cause was sent, if it lasts: what joins it is part of that message."""
    is_told = _has_cause(cause) & incidents.c.ended_at.is_(None) & incidents.c.told_at.is_not(None)
    told_at: float | None = connection.execute(select(func.min(incidents.c.told_at)).where(is_told)).scalar()
    return told_at


def _has_cause(cause: str) -> ColumnElement[bool]:
    """The condition for the rows of incidents with this `Incident.cause`."""
    return func.coalesce(incidents.c.cause, incidents.c.target) == cause


def end(connection: Connection, target: str) -> None:
    """Close the target's open incident."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    connection.execute(update(incidents).where(is_open).values(ended_at=database.now(connection)))


def retry(connection: Connection, flow: str) -> None:
    """Note that a person has the flow started again. Its incident lasts until the flow has lasted, and its next failure
    is another incident.
    """
    is_open = (incidents.c.target == flow) & incidents.c.ended_at.is_(None) & incidents.c.state.in_(OF_RUN)
    connection.execute(update(incidents).where(is_open).values(retried_at=database.now(connection)))


def open_of(engine: Engine, target: str) -> Incident | None:
    """The target's open incident. Raises Unreachable."""
    with database.reading(engine) as connection:
        return open_in(connection, target)


def open_in(connection: Connection, target: str) -> Incident | None:
    """The target's open incident."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    row = connection.execute(select(incidents).where(is_open)).one_or_none()
    return _to_incident(row) if row else None


def settle(connection: Connection, unhealthy: Mapping[str, Finding], healthy: Collection[str]) -> None:
    """Do the work of `begin` and `end` for many targets each minute, and write only what has changed.

    unhealthy: by flow or table. healthy: those that have no alarm any more.
    """
    is_open = incidents.c.target.in_([*unhealthy, *healthy]) & incidents.c.ended_at.is_(None)
    found = {row.target: row for row in connection.execute(select(incidents).where(is_open))}
    failed_again = {
        target
        for target, row in found.items()
        if row.retried_at and target in unhealthy and unhealthy[target].state in OF_RUN
    }
    # First, so that what begins is not taken for a part of what a person has heard of.
    for target in failed_again | (found.keys() & set(healthy)):
        end(connection, target)
    for target, finding in unhealthy.items():
        is_new = target not in found or target in failed_again
        if is_new or (finding.state in SENT_AT_ONCE and finding.state != found[target].state):
            begin(connection, target, *finding)


def targets_in_state(connection: Connection, state: str) -> frozenset[str]:
    """The targets whose open incident has this state."""
    is_open = (incidents.c.state == state) & incidents.c.ended_at.is_(None)
    return frozenset(connection.execute(select(incidents.c.target).where(is_open)).scalars())


def all_open(connection: Connection) -> list[Incident]:
    """The incidents that last, oldest first."""
    is_open = incidents.c.ended_at.is_(None)
    return [
        _to_incident(row) for row in connection.execute(select(incidents).where(is_open).order_by(incidents.c.number))
    ]


@dataclass(frozen=True)
class Notice:
    """One message: the incidents of one cause that a person has yet to hear of, or the end of all of them."""

    incidents: tuple[Incident, ...]
    is_over: bool = False

    @property
    def first(self) -> Incident:
        """Which gives the message its number and its reason."""
        return self.incidents[0]

    @property
    def title(self) -> str:
        """Such as `BACKING OFF driver main (9 flows)`."""
        subjects = self.subjects
        count = f" ({len(subjects)} flows)" if len(subjects) > 1 else ""
        return f"{self.first.state} {self.first.about}{count}"

    @property
    def subjects(self) -> list[str]:
        """What it is about, each once."""
        return list(dict.fromkeys(incident.subject for incident in self.incidents))


def unsent(engine: Engine) -> list[Notice]:
    """The messages that were not sent yet, oldest first. Raises Unreachable.

    A cause is over with its last incident.
    """
    with database.reading(engine) as connection:
        is_news = incidents.c.ended_at.is_(None) | incidents.c.told_at.is_(None) | incidents.c.over_told_at.is_(None)
        rows = connection.execute(select(incidents).where(is_news).order_by(incidents.c.number)).all()
    groups: dict[str, list[Incident]] = {}
    for incident in map(_to_incident, rows):
        groups.setdefault(incident.cause, []).append(incident)
    notices = filter(None, map(_notice, groups.values()))
    return sorted(notices, key=lambda notice: min(incident.number for incident in notice.incidents))


def _notice(group: list[Incident]) -> Notice | None:
    lasting = [incident for incident in group if not incident.is_over]
    if not lasting:
        # The newest of the worst says how it was at last.
        newest_first = sorted(group, key=lambda incident: (severity(incident.state), -incident.number))
        return Notice(tuple(newest_first), is_over=True)
    untold = [incident for incident in lasting if incident.told_at is None]
    worst_first = sorted(untold, key=lambda incident: severity(incident.state))
    return Notice(tuple(worst_first)) if untold else None


def mark_sent(engine: Engine, notice: Notice) -> None:
    """Mark all incidents of the message as sent. Raises Unreachable."""
    with database.transaction(engine) as connection:
        now = database.now(connection)
        is_part = incidents.c.number.in_([incident.number for incident in notice.incidents])
        connection.execute(update(incidents).where(is_part, incidents.c.told_at.is_(None)).values(told_at=now))
        if notice.is_over:
            connection.execute(update(incidents).where(is_part).values(over_told_at=now))


def _to_incident(row: Row[Any]) -> Incident:
    # A process of the previous build stores no subject.
    subject = row.subject or row.target.removeprefix(f"{ALARMS[AlarmKind(row.state)].part} ")
    return Incident(
        *(row.number, subject, row.state, row.reason, row.ended_at is not None, row.error, row.cause or ""),
        *(row.began_at, row.told_at, row.ended_at),
    )


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
    """Acknowledge the target's open alarm, with all that has the same cause, and mark them as sent. Returns None if the
    target has no open alarm.
    """
    lasts = incidents.c.ended_at.is_(None)
    incident = connection.execute(select(incidents).where(lasts, incidents.c.target == target)).one_or_none()
    if incident is None:
        return None
    has_cause = lasts & _has_cause(incident.cause or incident.target)
    numbers = connection.execute(select(incidents.c.number).where(has_cause)).scalars().all()
    now = database.now(connection)
    ends_at = now + hours * 3600
    for number in numbers:
        values = {"incident": number, "who": requester, "reason": reason, "ends_at": ends_at}
        statement = database.insert(connection, acknowledgements).values(values)
        connection.execute(statement.on_conflict_do_update(index_elements=["incident"], set_=values))
    is_unsent = incidents.c.number.in_(numbers) & incidents.c.told_at.is_(None)
    connection.execute(update(incidents).where(is_unsent).values(told_at=now))
    return Acknowledgement(incident.state, incident.error, requester, reason, ends_at)


def valid_acknowledgements(connection: Connection) -> dict[str, Acknowledgement]:
    """The valid acknowledgements of open alarms, by target."""
    is_valid = incidents.c.ended_at.is_(None) & (acknowledgements.c.ends_at > database.now(connection))
    rows = connection.execute(
        select(incidents.c.target, incidents.c.state, incidents.c.error, acknowledgements)
        .join(acknowledgements, acknowledgements.c.incident == incidents.c.number)
        .where(is_valid)
    )
    return {row.target: Acknowledgement(row.state, row.error, row.who, row.reason, row.ends_at) for row in rows}
