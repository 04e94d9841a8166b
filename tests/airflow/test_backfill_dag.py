"""`backfill` as Airflow runs it: by hand, and by `airflow backfill create` for several days."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from airflow.sdk.exceptions import AirflowFailException

from include import catalog
from include.airflow import jobs
from include.airflow.run import Run
from include.control.jobs import store
from include.control.jobs.backfills import Backfill
from include.project import ranges
from include.settings import from_environment
from tests.support.flows import only_in_full_runs
from tests.support.pipeline import random_events

SILVER, BRONZE = "silver.tracker_readings", "bronze.tracker_events"
FORM = {"from": None, "to": None, "where": "driver", "reason": "", "dry_run": False}


def test_every_table_that_can_be_backfilled_has_its_dag_and_no_other(dags):
    tables = catalog.load().tables.values()
    dag_ids = {f"backfill.{table.name}" for table in tables if ranges.refusal(table) is None}
    assert {name for name in dags if name.startswith("backfill.")} == dag_ids
    assert f"backfill.{BRONZE}" not in dag_ids
    choice = dags["backfill"].params.get_param("table").schema["enum"]
    assert {f"backfill.{name}" for name in choice} == dag_ids
    for dag in (dags["backfill"], dags[f"backfill.{SILVER}"]):
        assert [task.task_id for task in dag.topological_sort()] == ["plan", "in_driver", "backfill"]
        assert (dag.catchup, dag.get_task("backfill").durable) == (False, False)
    assert dags["backfill"].timetable.can_be_scheduled is False


def airflow(*arguments: str) -> str:
    command = [str(Path(sys.executable).parent / "airflow"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def test_a_backfill_is_created_day_by_day_and_nothing_runs_by_itself(dags):
    from airflow.models.dag import DagModel
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select

    name = f"backfill.{SILVER}"
    with create_session() as session:
        dag_model = session.scalar(select(DagModel).where(DagModel.dag_id == name))
        assert dag_model.next_dagrun is None, "the scheduler would start it"
        # Without a summary, the UI shows no backfills.
        assert dag_model.timetable_summary == "by hand"
    days = ("--from-date", "2026-03-01", "--to-date", "2026-03-03", "--max-active-runs", "2")
    airflow("backfill", "create", "--dag-id", name, *days)
    with create_session() as session:
        runs = session.scalars(select(DagRun).where(DagRun.dag_id == name)).all()
        runs_by_start = sorted((run.run_type, run.data_interval_start, run.data_interval_end) for run in runs)
    assert runs_by_start == [
        ("backfill", datetime(2026, 3, day, tzinfo=UTC), datetime(2026, 3, day + 1, tzinfo=UTC)) for day in (1, 2, 3)
    ]


@only_in_full_runs
def test_a_range_is_made_again_by_the_driver_and_where_that_does_not_live_by_a_job(pipeline, dags, at_home, capfd):
    pipeline.submit()
    pipeline.produce(random_events(1, count=500))
    pipeline.wait_until_gold_is_right()
    at_home(from_environment(pipeline.environment))

    def backfill_by_airflow() -> str:
        capfd.readouterr()
        conf = {"table": SILVER, "from": "2026-03-01T12:00", "to": "2026-03-01T13:00"}
        run = dags["backfill"].test(run_conf=conf)
        output = "".join(capfd.readouterr())
        assert run.state == "success", output[-5000:]
        newest_jobs = store.newest(pipeline.control, Backfill, limit=2)
        assert [(job.table, job.state) for job in newest_jobs] == [
            ("gold.heart_rate_by_model", "done"),
            (SILVER, "done"),
        ]
        assert newest_jobs[1].outcome["rows_before"] == newest_jobs[1].outcome["rows_after"] > 0
        return output

    assert "was done by the driver" in backfill_by_airflow()
    assert "begins backfill 1 of" in pipeline.log.read_text()
    pipeline.kill(pipeline.submitted[-1], "both")
    assert "is left to the task 'backfill': driver 'main' does not run" in backfill_by_airflow()
    pipeline.submit()
    pipeline.produce(random_events(2, count=500))
    pipeline.wait_until_gold_is_right()
    pipeline.assert_nothing_lost_or_doubled()


@pytest.mark.parametrize(
    ("table", "asked", "day", "sentence"),
    [
        (SILVER, {}, None, "silver.tracker_readings is backfilled by ranges of time: name one, --from and --to"),
        (BRONZE, {}, ("2026-03-01", "2026-03-02"), "bronze.tracker_events cannot be backfilled: it keeps what arrived"),
        (SILVER, {"from": "now", "to": "2026-03-02"}, None, "--from is 'now', no moment"),
        (SILVER, {}, ("2026-03-01", "2026-03-02"), "silver.tracker_readings is not stored yet"),
    ],
)
def test_what_cannot_be_done_is_refused_before_spark_starts(monkeypatch, tmp_path, table, asked, day, sentence):
    from include.settings import settings

    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings.cache_clear()
    try:
        with pytest.raises(AirflowFailException, match=f"^{sentence}"):
            jobs.plan_backfill(Run("manual", {"table": table, **FORM, **asked}, "ada", day, None, None))
    finally:
        monkeypatch.undo()
        settings.cache_clear()
