"""The page of one flow: what is wrong, what to press, its history as charts, its newest commits and its log."""

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from include.console import charts, query_report
from include.console.charts import Chart, Mark
from include.console.pages import Query
from include.console.readings import Readings
from include.control.jobs.store import StoredJob
from include.control.store.job_id import JobKind
from include.errors import UsageError
from include.monitoring.snapshot import PHASES, FlowSnapshot, Sample
from include.project.declaration import suggest
from include.settings import settings

# What one may always ask of a flow that is not stopped.
OF_RUNNING = ("restart", "stop", "drain")
SPANS = {"1h": 3600, "24h": 86_400, "7d": 7 * 86_400}
COMMITS = 50
LOG_LINES = 100
# A line can be long, and a page shows a screen or two.
MOST_LOG_BYTES = 32_000


def flow(readings: Readings, query: Query, name: str) -> dict[str, Any]:
    """Raises UsageError for an unknown flow, and Unreachable."""
    look = readings.look()
    line = next((line for line in look.lines if line.flow == name), None)
    if line is None:
        raise UsageError(f"{name!r} is not a flow: {suggest(name, [line.flow for line in look.lines])}")
    stored = next(stored for stored in look.snapshot.flows if stored.flow == name)
    span = query.get("span", "") if query.get("span") in SPANS else "1h"
    jobs = readings.jobs(None, stored.table)
    details = readings.details(stored.table)
    commits = [version for version in details.versions if version.get("flow") == name] if details else []
    return {
        **look.times,
        "here": None,
        "line": line,
        "stored": stored,
        "actions": _actions(stored),
        "span": span,
        "spans": SPANS,
        "charts": history_charts(readings.history(name, SPANS[span]), jobs, look.at or 0.0, SPANS[span]),
        "commits": commits[:COMMITS],
        "report": query_report.shown(readings.report(name)),
        "incidents": readings.incidents(name),
        "jobs": jobs[:20],
        "log_lines": _end_of_log(line.driver) if line.driver else "",
    }


def _actions(stored: FlowSnapshot) -> list[str]:
    """What its page offers to press, first what helps now."""
    of_query = () if stored.is_view or stored.wanted == "stopped" else OF_RUNNING
    of_alarm = "acknowledge" if stored.alarm and not stored.acknowledged else ""
    return list(dict.fromkeys(filter(None, (stored.action, *of_query, of_alarm))))


def _end_of_log(driver: str) -> str:
    """The last lines of a driver's log; empty where the driver writes none into a file on this machine."""
    file = settings().logs / f"driver-{driver}.log"
    # The name comes from a table file, and must not lead elsewhere.
    if file.parent != settings().logs or not file.is_file():
        return ""
    with file.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - MOST_LOG_BYTES))
        lines = log.read().decode(errors="replace").splitlines()
    return "\n".join(lines[-LOG_LINES:])


def history_charts(samples: Sequence[Sample], jobs: Sequence[StoredJob], at: float, seconds: float) -> list[Chart]:
    if not samples:
        return []
    begin = at - seconds
    # What is drawn later is on top.
    marks = [*_spans(jobs, begin, at), *_definitions(samples, begin, at), *_restarts(samples, begin, at)]

    def points(name: str, scale: float = 1.0) -> list[charts.Point]:
        values = [(sample.at, getattr(sample, name)) for sample in samples]
        return [(when, None if value is None else value * scale) for when, value in values]

    phases = {name.removesuffix("_ms").replace("_", " "): points(name) for name in PHASES}
    drawn = (
        charts.chart("Unread", {"in the measure of its source": points("behind")}, begin, at),
        charts.chart("Age of the oldest unread", {"seconds": points("lag_seconds")}, begin, at, "s"),
        charts.chart("Rows a second", {name: points(f"rows_{name}_per_second") for name in ("in", "out")}, begin, at),
        charts.chart("Batches", {"whole": points("batch_ms"), **phases}, begin, at, "ms"),
    )
    return [charts.with_marks(chart, marks) for chart in drawn if any(chart.lines.values())]


def _restarts(samples: Sequence[Sample], begin: float, end: float) -> Iterator[Mark]:
    for before, after in pairwise(samples):
        if None not in (before.starts, after.starts) and (after.starts or 0) > (before.starts or 0):
            yield charts.mark("restart", "restart", begin, end, after.at)


def _definitions(samples: Sequence[Sample], begin: float, end: float) -> Iterator[Mark]:
    known = [sample for sample in samples if sample.definition]
    for before, after in pairwise(known):
        if before.definition != after.definition:
            yield charts.mark("definition", f"definition {after.definition}", begin, end, after.at)


def _spans(jobs: Sequence[StoredJob], begin: float, end: float) -> Iterator[Mark]:
    for job in jobs:
        since = job.planned_at if job.kind != JobKind.WINDOW else getattr(job, "opened_at", None)
        until = job.ended_at or end
        if since is not None and until > begin:
            yield charts.mark("job", f"{job.kind} {job.number}: {job.state}", begin, end, since, until)
