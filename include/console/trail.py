"""The way of a row back to its source, as far as the stored versions tell it, and the command that tells the rest."""

from collections.abc import Callable
from dataclasses import dataclass, field

from include.monitoring.snapshot import TableDetails

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


def follow(details: Callable[[str], TableDetails | None], table: str, version: str, newest: int | None) -> Trail:
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
