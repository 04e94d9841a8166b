"""The times of schedules, as Airflow evaluates cron expressions."""

import math
import zlib
from datetime import UTC, datetime

from airflow.sdk import timezone
from airflow.timetables.base import DataInterval, TimeRestriction
from airflow.timetables.trigger import CronTriggerTimetable

from include.spec import Table


def next_tick(schedule: str, after: float) -> float:
    """The first time of a cron expression after `after`, both in seconds since 1970; infinite if there is none."""
    interval = DataInterval.exact(timezone.coerce_datetime(datetime.fromtimestamp(after, UTC)))
    restriction = TimeRestriction(earliest=None, latest=None, catchup=True)
    timetable = CronTriggerTimetable(schedule, timezone="UTC")
    try:
        run_info = timetable.next_dagrun_info(last_automated_data_interval=interval, restriction=restriction)
    except ValueError:
        # Such as the 30th of February.
        return math.inf
    return math.inf if run_info is None else run_info.run_after.timestamp()


def of_windows(table: Table) -> str | None:
    """The cron expression of `maintain.<table>`; None: by hand."""
    if table.maintain.schedule != "hourly":
        return table.maintain.schedule
    # Not Python's `hash`, which differs between processes.
    return f"{zlib.crc32(table.name.encode()) % 60} * * * *"
