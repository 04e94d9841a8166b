"""Which page of the console belongs to a DAG or a run of Airflow: that of the table, flow or driver that it names."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from include.console import words
from include.console.readings import Readings
from include.control.store.job_id import JobKind
from include.control.supervision.supervision import SUPERVISOR
from include.errors import UsageError

JOBS = {
    "maintain": JobKind.WINDOW,
    "backfill": JobKind.BACKFILL,
    "full_refresh": JobKind.BACKFILL,
    "refresh": JobKind.REFRESH,
    "replay": JobKind.REPLAY,
    "rewind": JobKind.REWIND,
}
CONTROL = "control.stream"


def place(readings: Readings, dag: str, form: Mapping[str, Any]) -> str:
    """Returns the address, relative to the board. form: of the run; empty for a DAG.

    Raises UsageError where it names nothing of Sluice, and Unreachable.
    """
    verb, _, own_table = dag.partition(".")
    look = readings.look()
    # Whoever triggers a DAG of their own may name anything, such as a list.
    named = {name: value for name, value in form.items() if isinstance(value, str)}
    table, flow, driver = named.get("table") or own_table, named.get("flow"), named.get("driver")
    if table in {stored.table for stored in look.snapshot.tables}:
        return f"table/{words.in_url(table)}"
    if flow in {line.flow for line in look.lines}:
        return f"flow/{words.in_url(flow)}"
    if driver:
        return f"?{urlencode({'driver': driver})}"
    if verb in JOBS:
        return f"jobs?{urlencode({'kind': JOBS[verb]})}"
    if dag in (CONTROL, SUPERVISOR):
        return "audit" if dag == CONTROL else ""
    raise UsageError(f"DAG {dag} is not of Sluice, and its run names no table of it: open Sluice in the navigation")
