"""What the pages read, all of it from the control database."""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Engine, Row, select

from include.console import board
from include.console.board import FlowLine
from include.control.flows import alarms, incidents
from include.control.flows.incidents import Acknowledgement
from include.control.jobs import all_kinds
from include.control.jobs.store import StoredJob
from include.control.store import database
from include.control.store.schema import audits, snapshots
from include.control.store.schema import incidents as incident_rows
from include.control.supervision.troubles import Trouble
from include.monitoring import snapshot
from include.monitoring.snapshot import FlowReport, Sample, Snapshot, TableDetails, Used

NEWEST = 100


@dataclass(frozen=True)
class IncidentLine:
    """One incident as a page shows it. cause: what it shares with others, as `Incident.cause`. ended_at: None while it
    lasts. command: what helps, or shows more.
    """

    number: int
    subject: str
    cause: str
    state: str
    reason: str
    began_at: float
    ended_at: float | None
    command: str
    runbook: str
    acknowledged: Acknowledgement | None


@dataclass(frozen=True)
class Look:
    """One look at the newest snapshot. at: its time, None before the first one. is_old: it may not hold any more."""

    at: float | None
    is_old: bool
    snapshot: Snapshot
    troubles: list[Trouble]
    lines: list[FlowLine]

    @property
    def times(self) -> dict[str, Any]:
        """What each page says about its age."""
        return {"as_of": self.at, "is_old": self.is_old}


NOTHING = Look(None, False, Snapshot(0.0), [], [])


class Readings:
    """engine: connects at the first request, so that Airflow starts while the control database is away."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._look = NOTHING

    def stamp(self) -> tuple[float | None, bool]:
        """The time of the newest snapshot, and whether it is old. Raises Unreachable."""
        with database.reading(self._engine()) as connection:
            query = select(snapshots.c.at).where(snapshots.c.part == snapshot.PLATFORM)
            at = connection.execute(query).scalar_one_or_none()
            return at, at is not None and database.now(connection) - at > snapshot.OLD_SECONDS

    def look(self) -> Look:
        """The newest snapshot, which all pages share until there is another. Raises Unreachable."""
        with self._lock:
            at, is_old = self.stamp()
            if at != self._look.at:
                self._look = self._new_look()
            return replace(self._look, is_old=is_old)

    def _new_look(self) -> Look:
        newest = snapshot.newest(self._engine())
        if newest is None:
            return NOTHING
        flows = [flow.flow for flow in newest.flows]
        histories = snapshot.histories(self._engine(), flows, board.HISTORY_SECONDS)
        troubles = list(newest.troubles)
        urgent = frozenset(flow for trouble in troubles if trouble.needs_person for flow in trouble.flows)
        return Look(newest.at, False, newest, troubles, board.lines(newest, histories, urgent))

    def history(self, flow: str, since_seconds: float) -> list[Sample]:
        """The samples of a flow, oldest first. Raises Unreachable."""
        return snapshot.history(self._engine(), flow, since_seconds)

    def details(self, table: str) -> TableDetails | None:
        """What is stored about one table. Raises Unreachable."""
        return snapshot.details(self._engine(), table)

    def used(self, flows: Collection[str], begin: float, end: float) -> dict[str, Used]:
        """What these flows have used, by flow. Raises Unreachable."""
        return snapshot.used(self._engine(), flows, begin, end)

    def report(self, flow: str) -> FlowReport | None:
        """The newest report of a flow's query. Raises Unreachable."""
        return snapshot.report(self._engine(), flow)

    def incidents(self, subject: str | None = None) -> list[IncidentLine]:
        """The open incidents, and the newest others, newest first. Raises Unreachable."""
        query = select(incident_rows).order_by(incident_rows.c.ended_at.is_not(None), incident_rows.c.number.desc())
        if subject:
            query = query.where(incident_rows.c.subject == subject)
        with database.reading(self._engine()) as connection:
            rows = connection.execute(query.limit(NEWEST)).all()
            acknowledged = incidents.valid_acknowledgements(connection)
        return [_line(row, acknowledged) for row in rows]

    def audit(self) -> list[Row[Any]]:
        """The newest lines, newest first. Raises Unreachable."""
        with database.reading(self._engine()) as connection:
            return list(connection.execute(select(audits).order_by(audits.c.number.desc()).limit(NEWEST)).all())

    def jobs(self, kind: str | None = None, table: str | None = None) -> list[StoredJob]:
        """The newest jobs, newest first. Raises UsageError for an unknown kind, and Unreachable."""
        return all_kinds.newest(self._engine(), kind, table, NEWEST)


def _line(row: Row[Any], acknowledged: dict[str, Acknowledgement]) -> IncidentLine:
    subject = row.subject or row.target
    return IncidentLine(
        row.number,
        subject,
        row.cause or row.target,
        row.state,
        row.reason,
        row.began_at,
        row.ended_at,
        alarms.command(row.state, subject, row.number, row.error),
        alarms.runbook(row.state),
        None if row.ended_at else acknowledged.get(row.target),
    )
