"""When the tables of one DAG have their runs, and how a run names its table."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from airflow.sdk import timezone
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.utils.types import DagRunType

from include.airflow.table_times import TableTimes, table_of_run

RESTRICTION = TimeRestriction(earliest=None, latest=None, catchup=False)
HOURLY = {"gold.c": "5 * * * *", "bronze.a": "5 * * * *", "silver.b": "40 * * * *"}


def runs(times: TableTimes, last: datetime | None, until: datetime) -> list[tuple[str, datetime]]:
    """What the scheduler would create now, up to a moment: table and minute of each run."""
    found, interval = [], last and DataInterval.exact(timezone.coerce_datetime(last))
    while (info := times.next_dagrun_info(last_automated_data_interval=interval, restriction=RESTRICTION)) and (
        info.run_after <= until
    ):
        found.append((table_of(times, info), info.run_after.replace(microsecond=0)))
        interval = info.data_interval
    return found


def table_of(times: TableTimes, info: DagRunInfo) -> str | None:
    run_id = times.generate_run_id(
        run_type=DagRunType.SCHEDULED, run_after=info.run_after, data_interval=info.data_interval
    )
    return table_of_run(run_id)


def test_each_table_runs_at_its_own_times_also_where_two_are_due_in_the_same_minute():
    now = datetime.now(UTC)
    found = runs(TableTimes(HOURLY), None, now + timedelta(hours=3))
    assert {table for table, _ in found} == set(HOURLY)
    for table, cron in HOURLY.items():
        moments = [moment for name, moment in found if name == table]
        # Both ends count, if the test begins at one of the times.
        assert len(moments) in (3, 4)
        assert {moment.minute for moment in moments} == {int(cron.split()[0])}
        assert {(later - earlier).total_seconds() for earlier, later in pairwise(moments)} == {3_600}


def test_a_table_that_was_due_while_nothing_was_scheduled_has_one_run():
    now = datetime.now(UTC)
    found = runs(TableTimes(HOURLY | {"gold.never": "0 0 30 2 *"}), now - timedelta(days=2), now)
    assert sorted(table for table, _ in found) == sorted(HOURLY)
    assert all(now - moment < timedelta(hours=1, minutes=1) for _, moment in found)


def test_nothing_runs_before_the_first_time_of_a_new_dag():
    now = datetime.now(UTC)
    assert runs(TableTimes({"gold.c": "0 0 1 1 *"}), None, now) == []
    assert runs(TableTimes({"gold.never": "0 0 30 2 *"}), None, now + timedelta(days=4000)) == []


@pytest.mark.parametrize(
    "run_id", ["manual__2026-03-01T00:00:00+00:00", "mine", "scheduled__2026-03-01T00:00:00+00:00"]
)
def test_a_run_of_another_kind_names_no_table(run_id: str):
    assert table_of_run(run_id) is None


def test_it_survives_airflows_database():
    times = TableTimes(HOURLY)
    assert TableTimes.deserialize(times.serialize()).crons == times.crons
