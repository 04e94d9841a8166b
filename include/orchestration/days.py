"""The days that `airflow backfill create` cuts a range into; no run begins by itself."""

from typing import Any

from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable


class Days(CronDataIntervalTimetable):
    """Whole days, UTC. A scheduled run that did nothing would keep `airflow backfill create` from that day."""

    description = "by hand, or by airflow backfill create"

    def __init__(self) -> None:
        super().__init__("0 0 * * *", "UTC")

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> "Days":
        return cls()

    def serialize(self) -> dict[str, Any]:
        return {}

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        if not restriction.catchup:
            # The scheduler asks for what it is to start.
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )
