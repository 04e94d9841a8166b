"""The page of one table: its contract, rules, quarantine, versions, files and readers, and the way of a row to it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from include.console.pages import Query
from include.console.readings import Readings
from include.errors import UsageError
from include.monitoring.snapshot import TableDetails
from include.project.declaration import suggest

VERSIONS = 50
MOST_STEPS = 10
# Of a number that a column of versions can hold.
MOST_DIGITS = 18


@dataclass(frozen=True)
class Step:
    """One version of a table. what: its batch, and what that read, in words."""

    table: str
    version: int
    at: float
    what: str


@dataclass(frozen=True)
class Trail:
    """version: as it was asked for. steps: from the table up. note: why there are no more steps."""

    version: str
    command: str
    steps: list[Step] = field(default_factory=list)
    note: str = ""


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
        "trail": _trail(readings.details, name, query.get("version", ""), stored.version),
        "jobs": readings.jobs(None, name)[:20],
    }


def tables(readings: Readings, query: Query) -> dict[str, Any]:
    look, name = readings.look(), query.get("q", "").lower()
    listed = [table for table in look.snapshot.tables if name in table.table.lower() or name in table.owner.lower()]
    return {**look.times, "here": "tables", "q": query.get("q", ""), "tables": listed}


def _trail(details: Callable[[str], TableDetails | None], table: str, version: str, newest: int | None) -> Trail:
    """details: of a table, by its name. version: empty: nobody has asked. newest: version of the table."""
    if not (version.isascii() and version.isdecimal() and len(version) <= MOST_DIGITS):
        return Trail("", f"sluice explain {table} --version {newest or 0}")
    steps: list[Step] = []
    name, wanted, note = table, int(version), ""
    while len(steps) < MOST_STEPS:
        stored = details(name)
        found = next((each for each in stored.versions if each["version"] == wanted), None) if stored else None
        if found is None:
            note = f"Version {wanted} of {name} is not among its stored versions."
            break
        batch = f"batch {found['batch']} of {found['flow']}" if found["batch"] else found["kind"]
        steps.append(Step(name, wanted, found["at"], f"{batch}, read {found.get('reads') or 'no source'}"))
        if not found.get("above"):
            break
        name, wanted = found["above"]
    return Trail(version, f"sluice explain {table} --version {int(version)}", steps, note)
