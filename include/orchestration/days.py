"""The timetable whose days `airflow backfill create` makes runs of. It schedules no runs."""

from datetime import UTC, datetime, time, timedelta
from typing import Any

from airflow.sdk import timezone
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable

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
