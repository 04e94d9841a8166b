"""A timetable that gives each table of a DAG runs of its own, at the times of its own cron expression."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from airflow.sdk import timezone
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction, Timetable
from airflow.timetables.trigger import CronTriggerTimetable

SCHEDULED = "scheduled"
MICROSECOND = timedelta(microseconds=1)


def table_of_run(run_id: str) -> str | None:
    """The table of a run that `TableTimes` has scheduled; None of any other run."""
    kind, _, name = run_id.partition("__")
    return name.rpartition("__")[2] if kind == SCHEDULED and "__" in name else None


class TableTimes(Timetable):
    """crons: by table, in UTC.

    A moment stands for one table: its microsecond is the place of the table among them. So tables that are due in the
    same minute have a run each, because the logical dates of a DAG differ. The id of a run names its table.
    Each table that was due while nothing was scheduled gets one run, as if it had a DAG of its own.
    """

    description = "each table at its own times"
    summary = "by table"

    def __init__(self, crons: Mapping[str, str]) -> None:
        super().__init__()
        self.crons = dict(sorted(crons.items()))

    def serialize(self) -> dict[str, Any]:
        return {"crons": self.crons}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> Timetable:
        return cls(data["crons"])

    def infer_manual_data_interval(self, *, run_after: datetime) -> DataInterval:
        return DataInterval.exact(timezone.coerce_datetime(run_after))

    def generate_run_id(
        self, *, run_type: Any, run_after: Any, data_interval: DataInterval | None, **extra: Any
    ) -> str:
        run_id = super().generate_run_id(run_type=run_type, run_after=run_after, data_interval=data_interval, **extra)
        return f"{run_id}__{self._table_at(run_after)}" if run_type == SCHEDULED else run_id

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        last = last_automated_data_interval.start if last_automated_data_interval else None
        tick = cache(lambda cron, after: _tick(cron, after, restriction))
        moments = []
        for place, cron in enumerate(self.crons.values()):
            offset = timedelta(microseconds=place)
            # The last run may be that of an earlier table in the same minute.
            found = tick(cron, last and last.replace(microsecond=0) - MICROSECOND)
            if found and last and found + offset <= last:
                found = tick(cron, last)
            if found:
                moments.append(found + offset)
        return DagRunInfo.exact(timezone.coerce_datetime(min(moments))) if moments else None

    def _table_at(self, moment: datetime) -> str:
        names = list(self.crons)
        # A table that was taken out in the meantime has moved the others up.
        return names[min(moment.microsecond, len(names) - 1)]


def _tick(cron: str, after: datetime | None, restriction: TimeRestriction) -> datetime | None:
    """The newest time after `after` that has passed, otherwise the next time. None if the expression has none."""
    interval = None if after is None else DataInterval.exact(timezone.coerce_datetime(after))
    try:
        run_info = CronTriggerTimetable(cron, timezone="UTC").next_dagrun_info(
            last_automated_data_interval=interval, restriction=restriction
        )
    except ValueError:
        # Such as the 30th of February.
        return None
    return run_info and run_info.run_after
