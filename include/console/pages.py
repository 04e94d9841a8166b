"""What each page shows: plain values for its template."""

from collections.abc import Mapping
from typing import Any

from include.console import runbooks
from include.console.readings import Readings
from include.control.store.job_id import JobKind


def incidents(readings: Readings, query: Mapping[str, str]) -> dict[str, Any]:
    lines = readings.incidents(query.get("subject"))
    is_open = [line for line in lines if line.ended_at is None]
    pages = {line.runbook: runbooks.as_html(line.runbook) for line in is_open}
    return {"here": "incidents", "subject": query.get("subject"), "open": is_open, "runbooks": pages} | {
        "over": [line for line in lines if line.ended_at is not None]
    }


def audit(readings: Readings, _query: Mapping[str, str]) -> dict[str, Any]:
    return {"here": "audit", "lines": readings.audit()}


def jobs(readings: Readings, query: Mapping[str, str]) -> dict[str, Any]:
    kind = query.get("kind") if query.get("kind") in list(JobKind) else None
    table = query.get("table") or None
    return {"here": "jobs", "kind": kind, "kinds": list(JobKind), "table": table, "jobs": readings.jobs(kind, table)}
