"""`maintain.<table>` as Airflow runs it, over a table with many small files: plan -> window -> verify."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from include import catalog
from include.control import database, windows
from include.ledger.log import Log
from include.local import environment, java
from include.settings import Settings, from_environment

BRONZE = "bronze.tracker_events"
MANY = 110


def test_every_table_has_its_dag_with_the_schedule_it_declares(dags):
    for table in catalog.load().tables.values():
        dag = dags[f"maintain.{table.name}"]
        assert dag.schedule == table.maintain.schedule
        assert [task.task_id for task in dag.topological_sort()] == ["plan", "window", "verify"]
        assert (dag.max_active_runs, dag.catchup, dag.get_task("window").durable) == (1, False, False)


def scatter(path: Path) -> None:
    """A table of many small files, each of another size."""
    for number in range(MANY):
        offsets = pa.array(range(number + 1), pa.int64())
        write_deltalake(str(path), pa.table({"offset": offsets}), mode="append")


def maintain(where: Settings) -> None:
    """`airflow dags test`, with the Airflow database of all tests and everything else of this test's own."""
    java_home = java.home()
    variables = environment.of_process(environment.write(where, java_home), java_home)
    variables |= {name: value for name, value in os.environ.items() if name.startswith("AIRFLOW_")}
    command = [str(Path(sys.executable).parent / "airflow"), "dags", "test", f"maintain.{BRONZE}"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]


def test_many_small_files_become_one_in_a_window_that_lands_in_the_calendar(tmp_path, airflow_database):
    where = from_environment({"SLUICE_HOME": str(tmp_path), "SLUICE_JARS": os.environ["SLUICE_JARS"]})
    path = where.table_path(BRONZE)
    scatter(path)
    maintain(where)
    [window] = windows.calendar(database.connect(where.control_url))
    assert (window.state, window.before.files, window.after.files) == ("done", MANY, 1)
    assert len(Log(path).state.live) == 1
    assert DeltaTable(str(path)).count() == sum(range(MANY + 1))
