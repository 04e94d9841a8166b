"""How a DAG appears in Airflow, and when it runs: description, owner and tags, windows, days of a backfill."""

import zlib
from collections.abc import Iterable
from datetime import UTC, datetime, time, timedelta
from string import Template
from typing import Any

from airflow.sdk import timezone
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable

from include.spec import Table

# The owner of tables without one, and of DAGs without a table.
OWNER = "sluice"
# Of a DAG for all tables: runs that wait for a driver or an approval must not delay others.
MOST_RUNS = 100
# Airflow refuses to import a DAG with a longer tag.
TAG_MOST_CHARACTERS = 100


def documentation(docstring: str, table: str) -> str:
    """The docstring of a DAG file. `$table` stands for the name of the table or flow."""
    return Template(docstring).substitute(table=table)


def description(docstring: str, table: str) -> str:
    """The first line of the documentation."""
    return documentation(docstring, table).splitlines()[0]


def owner(table: Table) -> str:
    return table.owner or OWNER


def tags(verb: str, table: Table) -> list[str]:
    """The verb, the layer, the table, and `sluice`."""
    names = (verb, table.layer, table.name, "sluice")
    return [name if len(name) <= TAG_MOST_CHARACTERS else f"{name[: TAG_MOST_CHARACTERS - 1]}…" for name in names]


def example(names: Iterable[str]) -> str:
    """The table or flow that the documentation of a DAG without a table uses in its examples."""
    return next((name for name in names if name.startswith("silver.")), "silver.orders")


def window_schedule(table: Table) -> str | None:
    """The cron expression of the table's windows; None: by hand."""
    if table.maintain.schedule != "hourly":
        return table.maintain.schedule
    # Not Python's `hash`, which differs between processes.
    return f"{zlib.crc32(table.name.encode()) % 60} * * * *"


DAY = timedelta(days=1)


class Days(Timetable):
    """Whole days, UTC. It schedules no runs: `airflow backfill create` would skip the days that already have one.

    No cron expression: Airflow would show it in the list, and its runs in the calendar.
    """

    description = "no run begins by itself: trigger one, or one for each day by `airflow backfill create`"
    # If it is None, as without a timetable, the page of the DAG does not show its backfills.
    summary = "by hand"

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        """The last whole day, as with a cron expression."""
        end = _midnight(run_after)
        return DataInterval(end - DAY, end)

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        # Without catchup, the caller is the scheduler, which gets no run.
        if not restriction.catchup or restriction.earliest is None:
            return None
        begin = last_automated_data_interval.end if last_automated_data_interval else restriction.earliest
        start = _midnight(begin - timedelta.resolution) + DAY
        if restriction.latest and start > restriction.latest:
            return None
        return DagRunInfo.interval(start, start + DAY)


def _midnight(moment: datetime) -> Any:
    """The last midnight, UTC, at or before the moment, as the `pendulum.DateTime` that Airflow takes."""
    return timezone.coerce_datetime(datetime.combine(moment.astimezone(UTC).date(), time(), UTC))
