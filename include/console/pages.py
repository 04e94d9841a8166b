"""What each page shows: plain values for its template."""

from collections.abc import Mapping
from typing import Any

from include.console import board as boards
from include.console import driver_log, runbooks
from include.console.board import FlowLine
from include.console.readings import Readings
from include.control.flows.decide import State
from include.control.store.job_id import JobKind
from include.errors import UsageError
from include.project.declaration import suggest

# The actions without an approval, and what each does.
ACTIONS = {
    "restart": "The flow ends after its current batch and starts again, with the table file as it is then.",
    "stop": "The flow ends after its current batch, and stays stopped until somebody starts it.",
    "start": "The flow runs again.",
    "drain": "The flow reads what its source holds now, and then stops.",
}
MOST_NAMED = 5


def board(readings: Readings, query: Mapping[str, str]) -> dict[str, Any]:
    at, lines = readings.flows()
    return {"as_of": at, "is_old": False, "headline": headline(lines), **boards.view(lines, query)}


def headline(lines: list[FlowLine]) -> str:
    """How many flows need a person, and which, in one sentence."""
    urgent = [line for line in sorted(lines, key=lambda line: line.order) if line.needs_person]
    if not urgent:
        return f"None of {len(lines)} flows needs you."
    names = ", ".join(f"{line.flow} is {line.state}" for line in urgent[:MOST_NAMED])
    rest = f" and {len(urgent) - MOST_NAMED} more" if len(urgent) > MOST_NAMED else ""
    return f"{len(urgent)} of {len(lines)} flows need{'s' if len(urgent) == 1 else ''} you: {names}{rest}."


def flow(readings: Readings, _query: Mapping[str, str], name: str) -> dict[str, Any]:
    at, lines = readings.flows()
    line = next((line for line in lines if line.flow == name), None)
    if line is None:
        raise UsageError(f"{name!r} is not a flow: {suggest(name, [line.flow for line in lines])}")
    table = readings.tables().flows[name].name
    actions = [(action, words) for action, words in ACTIONS.items() if (action == "start") is _is_stopped(line)]
    return {"here": None, "as_of": at, "is_old": False, "line": line, "table": table, "actions": actions} | {
        "incidents": readings.incidents(name),
        "jobs": readings.jobs(None, table),
        "log_lines": driver_log.last_lines(line.driver),
    }


def _is_stopped(line: FlowLine) -> bool:
    return line.state == State.STOPPED


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
