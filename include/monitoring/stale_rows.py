"""Describes rows that are not current, and the command that recomputes them."""

from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pyarrow as pa

from include.catalog import Catalog
from include.control.jobs import stale_rows
from include.control.jobs.stale_rows import Outdated, Stale
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


def marks() -> tuple[list[Stale], list[Outdated]]:
    """Returns all marks; none where the control database does not answer, which `status` reports."""
    try:
        engine = database.connect(settings().control_url)
        return stale_rows.stale_ranges(engine), stale_rows.outdated_ranges(engine)
    except SluiceError:
        return [], []


def by_table(tables: Catalog) -> dict[str, tuple[str, ...]]:
    """Describes each table's rows that are not current."""
    (stale, outdated), notes = marks(), dict[str, tuple[str, ...]]()
    described = [(mark.table, stale_words(mark)) for mark in stale if mark.table in tables.tables]
    known = [mark for mark in outdated if mark.flow in tables.flows]
    described += [(mark.table, outdated_words(mark, tables.flows[mark.flow])) for mark in known]
    for table, words in described:
        notes[table] = (*notes.get(table, ()), words)
    return notes


def stale_words(mark: Stale) -> str:
    """Describes for people why a table is stale."""
    return f"{mark.table}: STALE since {_minute(mark.since)}: {mark.why}"


def outdated_words(mark: Outdated, table: Table) -> str:
    older = "older rows" if mark.range == Slice() else f"rows {mark.range}"
    if mark.without_time:
        older = f"older rows without {table.sliced_by or 'a time'}"
    return (
        f"{mark.flow}: its definition of {_minute(mark.since)} holds from batch {mark.generation}/{mark.batch} on, "
        f"and {older} are of an earlier one: {remedy(mark, table)}, or action keep old rows"
    )


def remedy(mark: Outdated, table: Table) -> str:
    """Returns the command that makes the older rows again."""
    if mark.range.begin and mark.range.end:
        first, last = f"{mark.range.begin:%Y-%m-%d}", f"{mark.range.end:%Y-%m-%d}"
        form = f"""{{"table": "{table.name}", "from": "{first}", "to": "{last}"}}"""
        return f"airflow dags trigger backfill -c '{form}'"
    if why := ranges.refusal(table, as_a_whole=True):
        return f"no backfill can make them again ({why})"
    return f"spark-submit jobs/backfill.py --table {table.name} --full"


def _minute(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}Z"


def _midnight(value: Any) -> datetime:
    day = value.date() if isinstance(value, datetime) else value
    assert isinstance(day, date)
    return datetime.combine(day, time(), UTC)
