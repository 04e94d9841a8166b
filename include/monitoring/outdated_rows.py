"""Describes rows that were made by an earlier definition, and the command that makes them again."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pyarrow as pa

from include.catalog import Catalog
from include.control.jobs import outdated_rows
from include.control.jobs.outdated_rows import Outdated
from include.control.store import database
from include.delta import stored_table
from include.errors import SluiceError
from include.project import ranges
from include.project.ranges import Slice
from include.settings import settings
from include.spec import Table


def range_of(table: Table) -> tuple[Slice, bool]:
    """Returns the range of days in which a stored table's rows lie, and whether rows may have no time.

    The range is unlimited where statistics do not tell it. It then includes rows without a time.
    """
    whole = Slice(), False
    if table.sliced_by is None or ranges.refusal(table):
        return whole
    files = pa.table(stored_table.open_table(table.name).get_add_actions(flatten=True))
    names = ["num_records", *(f"{kind}.{table.sliced_by}" for kind in ("null_count", "min", "max"))]
    if not set(names) <= set(files.column_names):
        return whole
    days, has_rows_without = [], False
    for rows, without, first, last in zip(*(files[name].to_pylist() for name in names), strict=True):
        has_rows_without |= without != 0
        if rows is not None and rows == without:
            continue
        if first is None or last is None:
            return whole
        days += [first, last]
    try:
        return Slice(_midnight(min(days)), _midnight(max(days)) + timedelta(days=1)), has_rows_without
    except (ValueError, OverflowError):
        # No row has a time, or one has the largest possible time.
        return whole


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
    if mark.without_time:
        older = f"older rows without {table.sliced_by or 'a time'}"
    return (
        f"{mark.flow}: its definition of {since} holds from batch {mark.generation}/{mark.batch} on, and {older} are "
        f"of an earlier one: {remedy(mark, table)}, or action keep old rows"
    )


def remedy(mark: Outdated, table: Table) -> str:
    """Returns the command that makes the older rows again."""
    if mark.range.begin and mark.range.end:
        first, last = f"{mark.range.begin:%Y-%m-%d}", f"{mark.range.end:%Y-%m-%d}"
        return f"""airflow dags trigger backfill.{table.name} -c '{{"from": "{first}", "to": "{last}"}}'"""
    if why := ranges.refusal(table, as_a_whole=True):
        return f"no backfill can make them again ({why})"
    return f"spark-submit jobs/backfill.py --table {table.name} --full"


def _midnight(value: Any) -> datetime:
    day = value.date() if isinstance(value, datetime) else value
    assert isinstance(day, date)
    return datetime.combine(day, time(), UTC)
