"""Acknowledged alarms, which send no notifications for some hours."""

from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Connection, select, update

from include.control.decide import Decision
from include.control.incidents import ALWAYS_TOLD
from include.control.store import database
from include.control.store.schema import acknowledgements, incidents

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
        return is_same or (decision.state not in ALWAYS_TOLD and self.state not in ALWAYS_TOLD)

    def __str__(self) -> str:
        until = datetime.fromtimestamp(self.ends_at, UTC)
        return f"acknowledged by {self.who} until {until:%Y-%m-%d %H:%M}Z: {self.reason}"


def acknowledge(
    connection: Connection, target: str, requester: str, reason: str, hours: float
) -> Acknowledgement | None:
    """Acknowledge the target's open alarm, and mark it as told. Returns None if the target has no open alarm."""
    is_open = (incidents.c.target == target) & incidents.c.ended_at.is_(None)
    incident = connection.execute(select(incidents).where(is_open)).one_or_none()
    if incident is None:
        return None
    now = database.now(connection)
    values = {"incident": incident.number, "who": requester, "reason": reason, "ends_at": now + hours * 3600}
    statement = database.insert(connection, acknowledgements).values(values)
    connection.execute(statement.on_conflict_do_update(index_elements=["incident"], set_=values))
    is_untold = (incidents.c.number == incident.number) & incidents.c.told_at.is_(None)
    connection.execute(update(incidents).where(is_untold).values(told_at=now))
    return Acknowledgement(incident.state, incident.error, requester, reason, values["ends_at"])


def valid(connection: Connection) -> dict[str, Acknowledgement]:
    """The valid acknowledgements of open alarms, by target."""
    is_valid = incidents.c.ended_at.is_(None) & (acknowledgements.c.ends_at > database.now(connection))
    rows = connection.execute(
        select(incidents.c.target, incidents.c.state, incidents.c.error, acknowledgements)
        .join(acknowledgements, acknowledgements.c.incident == incidents.c.number)
        .where(is_valid)
    )
    return {row.target: Acknowledgement(row.state, row.error, row.who, row.reason, row.ends_at) for row in rows}
