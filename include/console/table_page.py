"""The page of one table: its contract, rules, quarantine, versions, files and readers."""

from typing import Any

from include.console import trail
from include.console.pages import Query
from include.console.readings import Readings
from include.errors import UsageError
from include.project.declaration import suggest

VERSIONS = 50


def table(readings: Readings, query: Query, name: str) -> dict[str, Any]:
    """Raises UsageError for an unknown table, and Unreachable."""
    look = readings.look()
    stored = next((stored for stored in look.snapshot.tables if stored.table == name), None)
    if stored is None:
        raise UsageError(f"{name!r} is not a table: {suggest(name, [stored.table for stored in look.snapshot.tables])}")
    details = readings.details(name)
    sizes = details.file_sizes if details else {}
    most = max(sizes.values(), default=1)
    return {
        **look.times,
        "here": None,
        "table": stored,
        "details": details,
        "lines": [line for line in look.lines if line.flow in stored.flows],
        "versions": list(details.versions[:VERSIONS]) if details else [],
        "file_sizes": [(bound, files, round(200 * files / most)) for bound, files in sizes.items()],
        "trail": trail.follow(readings.details, name, query.get("version", ""), stored.version),
        "jobs": readings.jobs(None, name)[:20],
    }


def tables(readings: Readings, query: Query) -> dict[str, Any]:
    look, name = readings.look(), query.get("q", "").lower()
    listed = [table for table in look.snapshot.tables if name in table.table.lower() or name in table.owner.lower()]
    return {**look.times, "here": "tables", "q": query.get("q", ""), "tables": listed}
