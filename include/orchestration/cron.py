"""When a schedule is due, as Airflow reads cron."""

import math
import zlib
from datetime import UTC, datetime

from airflow.sdk import timezone
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.trigger import CronTriggerTimetable

from include.spec import Table


def next_tick(schedule: str, after: float) -> float:
    """The first time of a cron expression after a moment, both in seconds since 1970; infinite where none comes."""
    followed = DataInterval.exact(timezone.coerce_datetime(datetime.fromtimestamp(after, UTC)))
    all_of_them = TimeRestriction(earliest=None, latest=None, catchup=True)
    timetable = CronTriggerTimetable(schedule, timezone="UTC")
    try:
        found = timetable.next_dagrun_info(last_automated_data_interval=followed, restriction=all_of_them)
    except ValueError:
        # Such as the 30th of February.
        return math.inf
    return math.inf if found is None else found.run_after.timestamp()


def of_windows(table: Table) -> str | None:
    """When `maintain.<table>` runs, in cron; None: by hand."""
    if table.maintain.schedule != "hourly":
        return table.maintain.schedule
    # No hash of Python's, which is another one in each process.
    return f"{zlib.crc32(table.name.encode()) % 60} * * * *"
