"""One Airflow database and one DagBag for the whole run."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from include.local import environment, java
from include.settings import Settings, from_environment, settings
from tests.conftest import ROOT, free_port
from tests.support.jobs import SHORT_LIVED
from tests.support.oncall import OnCall, copy_database, on_call
from tests.support.receiver import Receiver


@pytest.fixture(scope="session")
def airflow_database() -> Path:
    """It knows every DAG. Returns a copy of it, from before the first run of any."""
    for command in (("db", "migrate"), ("dags", "reserialize")):
        done = subprocess.run([str(Path(sys.executable).parent / "airflow"), *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    home = settings().home / "airflow"
    return copy_database(home / "airflow.db", home / "airflow-before-any-run.db")


@pytest.fixture(scope="session")
def dags(airflow_database):
    """Every DAG of the repository, by id."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    return bag.dags


@pytest.fixture
def at_home(monkeypatch) -> Iterator[Callable[[Settings], None]]:
    """`at_home(where)`: from now on DAGs that run in this process, and the jobs that they submit, work there."""

    def move(where: Settings) -> None:
        java_home = java.home()
        variables = environment.process_environment(environment.write_spark(where, java_home), java_home)
        for name, value in {**variables, **SHORT_LIVED}.items():
            monkeypatch.setenv(name, value)
        settings.cache_clear()

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    submit = SparkSubmitHook.submit

    def submit_and_close(hook: SparkSubmitHook, *arguments: str) -> None:
        """It leaves the pipe open from which it reads, and elsewhere its process ends then."""
        try:
            submit(hook, *arguments)
        finally:
            hook._submit_sp.stdout.close()

    monkeypatch.setattr(SparkSubmitHook, "submit", submit_and_close)
    yield move
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def receiver(monkeypatch) -> Iterator[Receiver]:
    """Where the Airflow connection `sluice_alerts` leads."""
    made = Receiver()
    connection = {"conn_type": "http", "host": made.url, "password": "hush", "extra": {"X-Team": "streams"}}
    monkeypatch.setenv("AIRFLOW_CONN_SLUICE_ALERTS", json.dumps(connection))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield made
    made.stop()


@pytest.fixture
def person(pipeline, airflow_database: Path) -> Iterator[OnCall]:
    """At an Airflow of the pipeline's own."""
    where = from_environment({**pipeline.environment, "SLUICE_AIRFLOW_PORT": str(free_port())})
    with on_call(where, airflow_database) as found:
        yield found
