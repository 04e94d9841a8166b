"""What each page shows: plain values for its template."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from include.console import board as boards
from include.console import runbooks
from include.console.readings import IncidentLine, Readings
from include.control.store.job_id import JobKind
from include.control.supervision import troubles

Query = Mapping[str, str]


def board(readings: Readings, query: Query) -> dict[str, Any]:
    look = readings.look()
    headline = troubles.headline(look.troubles, sum(not line.is_view for line in look.lines))
    return {**look.times, "headline": headline, "notices": look.snapshot.platform.notices} | boards.view(
        look.lines, query
    )


def incidents(readings: Readings, query: Query) -> dict[str, Any]:
    """What is wrong, grouped by cause, from the snapshot; what is over, from the incidents."""
    look, subject = readings.look(), query.get("subject")
    found = [trouble for trouble in look.troubles if not subject or subject in (trouble.subject, *trouble.flows)]
    pages = {trouble.runbook: runbooks.as_html(trouble.runbook) for trouble in found}
    over = _by_cause([line for line in readings.incidents(subject) if line.ended_at is not None])
    return {**look.times, "here": "incidents", "subject": subject, "troubles": found, "runbooks": pages, "over": over}


@dataclass(frozen=True)
class Over:
    """Incidents of one cause that lasted at the same time, count of them."""

    subject: str
    state: str
    reason: str
    began_at: float
    ended_at: float
    count: int = 1


def _by_cause(ended: Iterable[IncidentLine]) -> list[Over]:
    """ended: the newest first."""
    found: list[Over] = []
    newest: dict[str, int] = {}
    for line in ended:
        until = line.ended_at or line.began_at
        place = newest.get(line.cause)
        if place is not None and found[place].began_at <= until:
            same = found[place]
            found[place] = replace(
                same,
                subject=line.cause,
                began_at=min(same.began_at, line.began_at),
                ended_at=max(same.ended_at, until),
                count=same.count + 1,
            )
        else:
            newest[line.cause] = len(found)
            found.append(Over(line.subject, line.state, line.reason, line.began_at, until))
    return found


def audit(readings: Readings, _query: Query) -> dict[str, Any]:
    return {"here": "audit", "lines": readings.audit()}


def jobs(readings: Readings, query: Query) -> dict[str, Any]:
    kind = query.get("kind") if query.get("kind") in list(JobKind) else None
    table = query.get("table") or None
    return {"here": "jobs", "kind": kind, "kinds": list(JobKind), "table": table, "jobs": readings.jobs(kind, table)}
