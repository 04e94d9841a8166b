"""What the pages read, all of it from the control database."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Row, select

from include import catalog
from include.catalog import Catalog
from include.console import flow_lines
from include.console.board import FlowLine
from include.control.flows import alarms, incidents
from include.control.flows.incidents import Acknowledgement
from include.control.jobs import all_kinds
from include.control.jobs.store import StoredJob
from include.control.store import database
from include.control.store.schema import audits
from include.control.store.schema import incidents as incident_rows

NEWEST = 100
# Open pages share one look at the flows.
SHARED_SECONDS = 8


@dataclass(frozen=True)
class IncidentLine:
    """One incident as a page shows it. ended_at: None while it lasts. command: what helps, or shows more."""

    number: int
    subject: str
    state: str
    reason: str
    began_at: float
    ended_at: float | None
    command: str
    runbook: str
    acknowledged: Acknowledgement | None


class Readings:
    """engine: connects at the first request, so that Airflow starts while the control database is away."""

    def __init__(self, engine: Callable[[], Engine]) -> None:
        self._engine = engine
        self._tables: Catalog | None = None
        self._lock = threading.Lock()
        self._flows: tuple[float, list[FlowLine]] = 0.0, []
        self._looked_at = float("-inf")

    def tables(self) -> Catalog:
        """The catalog of the table files as they are now."""
        if self._tables is None or catalog.file_versions() != self._tables.files:
            self._tables = catalog.load()
        return self._tables

    def flows(self) -> tuple[float, list[FlowLine]]:
        """When the flows were looked at, in seconds since 1970, and their lines. Raises Unreachable."""
        with self._lock:
            if time.monotonic() - self._looked_at >= SHARED_SECONDS:
                self._flows = flow_lines.lines(self._engine(), self.tables())
                self._looked_at = time.monotonic()
            return self._flows

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
        row.state,
        row.reason,
        row.began_at,
        row.ended_at,
        alarms.command(row.state, subject, row.number, row.error),
        alarms.runbook(row.state),
        None if row.ended_at else acknowledged.get(row.target),
    )
