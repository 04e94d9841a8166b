"""Describes rows that were made by an earlier definition, and the command that makes them again."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pyarrow as pa

from include.catalog import Catalog
from include.control.jobs import outdated_rows
from include.control.jobs.outdated_rows import Outdated
from include.control.store import database
from include.errors import SluiceError
from include.readers import stored_table
from include.settings import settings
from include.spec import Table
from include.validation import slices
from include.validation.slices import Slice


def range_of(table: Table) -> Slice:
    """Returns the range of days in which a stored table's rows lie; the unlimited range without statistics."""
    if table.sliced_by is None or slices.refusal(table):
        return Slice()
    files = pa.table(stored_table.open_table(table.name).get_add_actions(flatten=True))
    bounds = [f"{bound}.{table.sliced_by}" for bound in ("min", "max")]
    if not set(bounds) <= set(files.column_names):
        return Slice()
    first, last = ([value for value in files[name].to_pylist() if value is not None] for name in bounds)
    try:
        return Slice(_midnight(min(first)), _midnight(max(last)) + timedelta(days=1))
    except (ValueError, OverflowError):
        # No row has a time, or one has the largest possible time.
        return Slice()


def by_table(tables: Catalog) -> dict[str, tuple[str, ...]]:
    """Describes each table's outdated rows; empty where the control database does not answer, as `status` reports."""
    try:
        marks = outdated_rows.list_all(database.connect(settings().control_url))
    except SluiceError:
        return {}
    notes: dict[str, tuple[str, ...]] = {}
    for mark in marks:
        if mark.flow in tables.flows:
            notes[mark.table] = (*notes.get(mark.table, ()), describe(mark, tables.flows[mark.flow]))
    return notes


def describe(mark: Outdated, table: Table) -> str:
    since = f"{datetime.fromtimestamp(mark.since, UTC):%Y-%m-%d %H:%M}Z"
    older = "older rows" if mark.range == Slice() else f"rows {mark.range}"
    return (
        f"{mark.flow}: its definition of {since} holds from batch {mark.generation}/{mark.batch} on, and {older} are "
        f"of an earlier one: {remedy(mark, table)}, or action keep old rows"
    )


def remedy(mark: Outdated, table: Table) -> str:
    """Returns the command that makes the older rows again."""
    if mark.range.begin and mark.range.end:
        first, last = f"{mark.range.begin:%Y-%m-%d}", f"{mark.range.end:%Y-%m-%d}"
        return f"""airflow dags trigger backfill.{table.name} -c '{{"from": "{first}", "to": "{last}"}}'"""
    if why := slices.refusal(table, as_a_whole=True):
        return f"no backfill can make them again ({why})"
    return f"spark-submit jobs/backfill.py --table {table.name} --full"


def _midnight(value: Any) -> datetime:
    day = value.date() if isinstance(value, datetime) else value
    assert isinstance(day, date)
    return datetime.combine(day, time(), UTC)
