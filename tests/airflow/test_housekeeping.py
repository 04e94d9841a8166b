"""Airflow's own command cleans up its metadata, and the supervisor works afterwards."""

import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import func, select, text

from include import catalog, retention
from include.airflow.supervisor import housekeeping, notify, watchdog
from include.airflow.supervisor.watchdog import Housekeeper
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import incidents
from include.control.store import database
from include.settings import settings
from tests.conftest import ROOT
from tests.support.waiting import wait_until

CLI = str(Path(sys.executable).parent / "airflow")
RUNS = 40


def airflow(*arguments: str) -> str:
    result = subprocess.run([CLI, *arguments], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


@pytest.fixture
def supervise(dags):
    """The DAG, without a flow to start."""
    engine, flows = database.connect(settings().control_url), tuple(catalog.load().flows)
    commands.execute(engine, Command(Action.STOP, flows, "a test", "only the supervisor is at work"))
    yield dags["supervise"]
    commands.execute(engine, Command(Action.START, flows, "a test", "it is over"))


@pytest.fixture
def session(dags):
    from airflow import settings as airflow_settings

    airflow("dags", "reserialize")
    airflow_session = airflow_settings.Session()
    yield airflow_session
    airflow_session.rollback()
    airflow_session.close()


def store_daily_runs(session, dag_id: str) -> None:
    """Store a run for each of the last `RUNS` days, each with a task, an XCom and a log entry."""
    from airflow.models import DagRun, Log, TaskInstance
    from airflow.models.dag_version import DagVersion
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.xcom import XComModel
    from airflow.utils.state import DagRunState, TaskInstanceState
    from airflow.utils.types import DagRunTriggeredByType, DagRunType

    dag, version = (
        SerializedDagModel.get_dag(dag_id, session=session),
        DagVersion.get_latest_version(dag_id, session=session),
    )
    for age_days in range(RUNS):
        started_at = datetime.now(UTC) - timedelta(days=age_days, minutes=1)
        run = DagRun(
            dag_id=dag_id,
            run_id=f"{dag_id}_{age_days}",
            logical_date=started_at,
            run_after=started_at,
            start_date=started_at,
            run_type=DagRunType.SCHEDULED,
            state=DagRunState.SUCCESS,
            triggered_by=DagRunTriggeredByType.TIMETABLE,
        )
        run.created_dag_version_id = version.id
        session.add(run)
        session.flush()
        task = TaskInstance(dag.get_task("reconcile"), run_id=run.run_id, dag_version_id=version.id)
        task.start_date, task.state = started_at, TaskInstanceState.SUCCESS
        session.add(task)
        session.flush()
        XComModel.set("return_value", [], dag_id=dag_id, task_id="reconcile", run_id=run.run_id, session=session)
        log_entry = Log("success", task_instance=task)
        log_entry.dttm = started_at
        session.add(log_entry)
    session.execute(text("UPDATE xcom SET timestamp = (SELECT start_date FROM dag_run WHERE id = dag_run_id)"))
    session.commit()


def test_old_runs_go_with_all_that_belongs_to_them_and_the_supervisor_works_on(supervise, session):
    from airflow.models import DagRun, Log, TaskInstance
    from airflow.models.dag_version import DagVersion
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.xcom import XComModel

    def count(model) -> int:
        session.rollback()
        is_supervise = model.dag_id == "supervise"
        return session.execute(select(func.count()).select_from(model).where(is_supervise)).scalar_one()

    store_daily_runs(session, "supervise")
    rows_before = {model: count(model) for model in (DagRun, TaskInstance, XComModel, Log)}
    versions = count(DagVersion)
    message = housekeeping.clean_airflow()
    assert message.endswith("deleted")
    rows_after = {model: count(model) for model in rows_before}
    # Other tests leave recent runs.
    assert {rows_before[model] - rows_after[model] for model in rows_before} == {RUNS - retention.AIRFLOW_DAYS}
    assert count(DagVersion) == versions
    assert SerializedDagModel.get_dag("supervise", session=session) is not None
    run = supervise.test()
    assert run.get_task_instance("reconcile").state == "success"
    assert count(DagRun) == rows_after[DagRun] + 1


def test_airflow_that_cannot_be_cleaned_up_is_said_and_holds_up_nothing_else(monkeypatch, caplog):
    monkeypatch.setattr(housekeeping, "AIRFLOW", "/nowhere/airflow")
    assert housekeeping.main() == 1
    output = caplog.text
    assert "Airflow's metadata: not cleaned up, next time: " in output
    assert "rows of the control database: {" in output
    engine = database.connect(settings().control_url)
    [alarm] = [notice for notice in incidents.unsent(engine) if notice.first.target == housekeeping.NAME]
    assert alarm.first.state == "NOT CLEANED UP"
    assert alarm.first.reason.startswith("Airflow's metadata: ")
    assert notify.message(alarm)["command"] == "python -m include.airflow.supervisor.housekeeping"
    assert (ROOT / notify.message(alarm)["runbook"]).exists()
    monkeypatch.setattr(housekeeping, "clean_airflow", lambda: "deleted")
    assert housekeeping.main() == 0
    assert incidents.open_of(engine, housekeeping.NAME) is None


def test_the_watchdog_has_it_done_once_in_an_hour_and_never_waits(monkeypatch, tmp_path):
    mark = tmp_path / "mark"
    monkeypatch.setattr(watchdog, "HOUSEKEEPING", [sys.executable, "-c", f"open({str(mark)!r}, 'a').write('x')"])
    housekeeper = Housekeeper(next_at=time.monotonic())
    housekeeper.look()
    wait_until(lambda: mark.exists() and mark.read_text() == "x", 30)
    first_child = housekeeper.child
    housekeeper.look()
    assert housekeeper.child is first_child
    housekeeper.next_at = time.monotonic()
    wait_until(lambda: first_child.poll() is not None, 30)
    housekeeper.look()
    wait_until(lambda: mark.read_text() == "xx", 30)
