"""The next time at which a schedule is due, and the run that the scheduler then creates."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select

from include import catalog
from include.airflow.supervisor.reconcile import next_tick
from include.airflow.table_times import table_of_run
from tests.support import scheduler


@pytest.mark.parametrize(
    ("schedule", "after", "due"),
    [
        ("0 * * * *", "2026-11-22T07:59:59+00:00", "2026-11-22T08:00:00+00:00"),
        ("0 * * * *", "2026-11-22T08:00:00+00:00", "2026-11-22T09:00:00+00:00"),
        ("30 3 * * 1", "2026-11-22T07:00:00+00:00", "2026-11-23T03:30:00+00:00"),
        # Many time zones set their clocks back in this night. The schedule is in UTC.
        ("30 2 * * *", "2026-10-24T23:00:00+00:00", "2026-10-25T02:30:00+00:00"),
    ],
)
def test_the_next_time_of_a_schedule_is_that_of_cron_in_utc(schedule: str, after: str, due: str):
    next_time = next_tick(schedule, datetime.fromisoformat(after).timestamp())
    assert datetime.fromtimestamp(next_time, UTC) == datetime.fromisoformat(due)


def test_a_day_that_never_comes_is_never_due():
    assert next_tick("0 0 30 2 *", 0.0) == math.inf


def test_the_scheduler_creates_one_run_for_each_table_that_is_due_and_its_id_names_the_table(dags):
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session

    # Where the scheduler was down for a day.
    yesterday = datetime.now(UTC) - timedelta(days=1)
    with create_session() as session:
        model = session.scalar(select(DagModel).where(DagModel.dag_id == "maintain"))
        first = model.next_dagrun - timedelta(days=1)
        model.next_dagrun = model.next_dagrun_data_interval_start = model.next_dagrun_data_interval_end = first
        model.next_dagrun_create_after = yesterday
    tables = [name for name, table in catalog.load().tables.items() if table.maintain.schedule]
    for _ in range(len(tables) + 3):
        scheduler.create_runs()
    with create_session() as session:
        ids = session.scalars(select(DagRun.run_id).where(DagRun.dag_id == "maintain", DagRun.run_type == "scheduled"))
        named = [table_of_run(run_id) for run_id in ids]
    assert set(named) == set(tables)
    # Not one for each hour of the day. A table may come due again meanwhile, and the first run was due before.
    assert len(named) < 2 * len(tables)
