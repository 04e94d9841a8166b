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
from tests.support.jobs.process import SHORT_LIVED
from tests.support.oncall import OnCall, copy_database, on_call
from tests.support.receiver import Receiver


@pytest.fixture(scope="session")
def airflow_database() -> Path:
    """An Airflow database with all DAGs. Returns a copy from before the first run."""
    for command in (("db", "migrate"), ("dags", "reserialize")):
        result = subprocess.run(
            [str(Path(sys.executable).parent / "airflow"), *command], capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
    home = settings().home / "airflow"
    return copy_database(home / "airflow.db", home / "airflow-before-any-run.db")


@pytest.fixture
def ada_and_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two users of Airflow, who may both approve."""
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "ada:admin,grace:op")


@pytest.fixture(scope="session")
def dags(airflow_database):
    """Every DAG of the repository, by id."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    return bag.dags


@pytest.fixture
def at_home(monkeypatch) -> Iterator[Callable[[Settings], None]]:
    """`at_home(config)`: DAGs in this process, and the jobs that they submit, use that home directory."""

    def use_settings(config: Settings) -> None:
        java_home = java.home()
        variables = environment.process_environment(environment.write_spark(config, java_home), java_home)
        for name, value in {**variables, **SHORT_LIVED}.items():
            monkeypatch.setenv(name, value)
        settings.cache_clear()

    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    submit = SparkSubmitHook.submit

    def submit_and_close(hook: SparkSubmitHook, *arguments: str) -> None:
        """The hook leaves its output pipe open. Outside of tests, the end of the process closes the pipe."""
        try:
            submit(hook, *arguments)
        finally:
            hook._submit_sp.stdout.close()

    monkeypatch.setattr(SparkSubmitHook, "submit", submit_and_close)
    yield use_settings
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def receiver(monkeypatch) -> Iterator[Receiver]:
    """The HTTP receiver of the Airflow connection `sluice_alerts`."""
    server = Receiver()
    connection = {"conn_type": "http", "host": server.url, "password": "hush", "extra": {"X-Team": "streams"}}
    monkeypatch.setenv("AIRFLOW_CONN_SLUICE_ALERTS", json.dumps(connection))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield server
    server.stop()


@pytest.fixture
def person(pipeline, airflow_database: Path) -> Iterator[OnCall]:
    """The on-call engineer, with an Airflow in the pipeline's home directory."""
    config = from_environment({**pipeline.environment, "SLUICE_AIRFLOW_PORT": str(free_port())})
    with on_call(config, airflow_database) as engineer:
        yield engineer
