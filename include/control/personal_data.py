"""Shows personal data to a person who asks for it: the audit records who, and why."""

from dataclasses import replace
from typing import TypeVar

from include.control.store import audit, database
from include.errors import UsageError
from include.settings import settings
from include.spec import Table

T = TypeVar("T", bound=Table)
ACTION = "show personal data"


def shown(table: T, who: str, reason: str | None) -> T:
    """Returns the table as one without personal columns, after the audit has it. Raises UsageError, and Unreachable."""
    if not reason:
        raise UsageError("--show-personal needs a reason for the audit: write --reason WHY")
    with database.transaction(database.connect(settings().control_url)) as connection:
        audit.record(connection, who, ACTION, table.name, reason, "its rows were shown", has_effect=False)
    return without_personal(table)


def without_personal(table: T) -> T:
    """Returns the table as one without personal columns."""
    return replace(table, personal=(), pseudonymise=(), reads_personal=False)
