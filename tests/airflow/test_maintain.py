"""`maintain` as Airflow runs it, over a table with many small files."""

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from airflow.sdk.exceptions import AirflowFailException
from deltalake import CommitProperties, DeltaTable, write_deltalake
from sqlalchemy import Engine, select

from include import catalog
from include.airflow import dags as airflow_dags
from include.airflow import maintenance
from include.control.flows import placements, queue
from include.control.jobs import store, windows
from include.control.jobs.windows import TableSize, Window
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database, job_id
from include.control.store.schema import incidents
from include.delta.delta_log import DeltaLog
from include.lake import locations
from include.maintenance import table_survey
from include.settings import from_environment, settings
from include.spec import Maintenance
from tests.support.waiting import wait_until

BRONZE = "bronze.tracker_events"
FILE_COUNT = 110


def test_every_table_has_the_schedule_it_declares_and_its_dag_of_before_starts_nothing(dags):
    tables = catalog.load().tables
    crons = {name: cron for name, table in tables.items() if (cron := airflow_dags.window_schedule(table))}
    assert dags["maintain"].schedule.crons == crons
    for dag in (dags["maintain"], *(dags[f"maintain.{name}"] for name in tables)):
        assert [task.task_id for task in dag.topological_sort()] == ["plan", "in_driver", "window", "verify"]
        assert (dag.catchup, dag.get_task("window").durable) == (False, False)
    of_before = [dags[f"maintain.{name}"] for name in tables]
    assert all((dag.schedule, dag.max_active_runs) == (None, 1) for dag in of_before)


def test_tables_are_looked_at_once_an_hour_spread_over_it_unless_they_say_when():
    table = catalog.load().table(BRONZE)
    other_tables = [replace(table, name=f"bronze.t{number}") for number in range(20)]
    minutes = {airflow_dags.window_schedule(other_table).removesuffix(" * * * *") for other_table in other_tables}
    assert len(minutes) > 10
    assert all(0 <= int(minute) < 60 for minute in minutes)
    assert airflow_dags.window_schedule(replace(table, maintain=Maintenance(schedule="0 3 * * *"))) == "0 3 * * *"
    assert airflow_dags.window_schedule(replace(table, maintain=Maintenance(schedule=None))) is None


def write_small_files(path: Path) -> None:
    """Write a table of many small files of different sizes."""
    for number in range(FILE_COUNT):
        offsets = pa.array(range(number + 1), pa.int64())
        write_deltalake(str(path), pa.table({"offset": offsets}), mode="append")


def test_many_small_files_become_one_in_a_window_that_lands_in_the_calendar(tmp_path, dags, at_home):
    config = from_environment({"SLUICE_HOME": str(tmp_path), "SLUICE_JARS": os.environ["SLUICE_JARS"]})
    path = locations.table_path(BRONZE, config)
    write_small_files(path)
    at_home(config)
    assert dags["maintain"].test(run_conf={"table": BRONZE}).state == "success"
    [window] = store.newest(database.connect(config.control_url), Window)
    assert (window.state, window.before.files, window.after.files) == ("done", FILE_COUNT, 1)
    assert len(DeltaLog(path).state.live) == 1
    assert DeltaTable(str(path)).count() == sum(range(FILE_COUNT + 1))


def test_the_driver_that_a_flow_has_moved_to_is_asked_first_and_no_job_is_submitted(tmp_path, dags, at_home):
    config = from_environment({"SLUICE_HOME": str(tmp_path), "SLUICE_JARS": os.environ["SLUICE_JARS"]})
    path = locations.table_path(BRONZE, config)
    write_small_files(path)
    at_home(config)
    engine = database.connect(config.control_url)
    renewer = LeaseRenewer(engine, Holder.here("other", os.getpid()), 30, lambda reason: os.abort())
    with database.transaction(engine) as connection:
        placements.move(connection, catalog.load().flow(BRONZE), "other")

    def run_window() -> None:
        wait_until(lambda: queue.claim(engine, job_id.window(1)), 120)
        renewer.take([lease.window_lease(BRONZE)])
        windows.request(engine, 1, BRONZE, renewer.epoch(lease.window_lease(BRONZE)))
        windows.open_(engine, 1, table_survey.survey(engine, catalog.load().table(BRONZE), catalog.load())[0].shape)
        DeltaTable(str(path)).optimize.compact(commit_properties=CommitProperties({"userMetadata": '{"window": 1}'}))
        windows.close(engine, 1, table_survey.survey(engine, catalog.load().table(BRONZE), catalog.load())[0].shape)
        renewer.give_back([lease.window_lease(BRONZE)])

    renewer.take([lease.driver_lease("other")])
    renewer.start()
    try:
        driver = threading.Thread(target=run_window)
        driver.start()
        run = dags[f"maintain.{BRONZE}"].test()
        driver.join()
    finally:
        renewer.stop()
    assert run.state == "success"
    states = {task.task_id: task.state for task in run.get_task_instances()}
    assert states == {"plan": "success", "in_driver": "success", "window": "skipped", "verify": "success"}
    assert len(DeltaLog(path).state.live) == 1


@pytest.fixture
def home(tmp_path: Path, monkeypatch) -> Iterator[Engine]:
    """A home directory for one test. Returns its control database."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.delenv("SLUICE_CONTROL_URL", raising=False)
    settings.cache_clear()
    yield database.connect(settings().control_url)
    monkeypatch.undo()
    settings.cache_clear()


def test_a_window_that_rewrites_more_than_a_driver_should_is_not_asked_of_one(home: Engine):
    table, most = catalog.load().table(BRONZE), maintenance.MOST_BYTES_REWRITTEN
    numbers = [windows.plan(home, BRONZE, "ada", "why", True, size) for size in (most, most + 2**20)]
    answers = [maintenance.ask_for_window(home, table, table.driver, number, "") for number in numbers]
    # The driver of the first one does not run.
    assert answers == [
        f"driver '{table.driver}' does not run",
        "a driver rewrites 512 MB at most, and this is 513 MB",
    ]


def commit(metadata: dict[str, object]) -> None:
    """Append a version of the table with this commit metadata."""
    rows, properties = (
        pa.table({"offset": pa.array([1], pa.int64())}),
        CommitProperties({"userMetadata": json.dumps(metadata)}),
    )
    write_deltalake(str(locations.table_path(BRONZE)), rows, mode="append", commit_properties=properties)


def window(engine: Engine, after: TableSize, *commits: dict[str, object]) -> int:
    """Run a window that is open while the table gets these commits. Returns its number."""
    commit({"flow": BRONZE})
    number = windows.plan(engine, BRONZE, "a test", "many files", is_worth_it=True)
    windows.request(engine, number, BRONZE, 1)
    windows.open_(engine, number, TableSize(0, 2, 10, 2, 10))
    for metadata in commits:
        commit(metadata | {"window": number} if "window" in metadata else metadata)
    windows.close(engine, number, replace(after, version=len(commits)))
    return number


AFTER = TableSize(0, 1, 10, 0, 10)


def open_alarms(engine: Engine) -> list[str]:
    with database.transaction(engine) as connection:
        query = select(incidents.c.state).where(incidents.c.ended_at.is_(None))
        return list(connection.execute(query).scalars())


def test_a_window_that_did_what_it_should_passes_and_ends_the_alarm_of_the_one_before(home: Engine):
    with pytest.raises(AirflowFailException, match="its window did not finish: there is no window 17"):
        maintenance.verify(BRONZE, 17)
    with pytest.raises(AirflowFailException, match="no window could be planned: read the log of its task"):
        maintenance.verify(BRONZE, None)
    assert open_alarms(home) == ["WINDOW FAILED"]
    maintenance.verify(BRONZE, window(home, AFTER, {"window": 0}))
    assert open_alarms(home) == []


@pytest.mark.parametrize(
    ("after", "said", "sentence"),
    [
        (replace(AFTER, rows=9), {"window": 0}, "it held 10 rows before its window and 9 after it"),
        (replace(AFTER, files=3), {"window": 0}, "it had 2 files before its window and 3 after it"),
        (AFTER, {"by": "spark-sql"}, r"somebody else wrote it during its window: version 1 \(WRITE\)"),
    ],
    ids=["rows", "files", "a stranger"],
)
def test_what_went_wrong_in_a_window_is_named_and_told(home: Engine, after, said, sentence):
    number = window(home, after, said)
    with pytest.raises(AirflowFailException, match=f"{BRONZE}: {sentence}"):
        maintenance.verify(BRONZE, number)
    assert open_alarms(home) == ["WINDOW FAILED"]


def test_a_window_whose_job_died_is_named(home: Engine):
    commit({"flow": BRONZE})
    number = windows.plan(home, BRONZE, "a test", "many files", is_worth_it=True)
    windows.request(home, number, BRONZE, 1)
    with pytest.raises(AirflowFailException, match="its window did not finish: many files; its job died"):
        maintenance.verify(BRONZE, number)
