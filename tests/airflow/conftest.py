"""One Airflow database and one DagBag for the whole run."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture(scope="session")
def airflow_database() -> None:
    migrated = subprocess.run(
        [str(Path(sys.executable).parent / "airflow"), "db", "migrate"], capture_output=True, text=True
    )
    assert migrated.returncode == 0, migrated.stderr


@pytest.fixture(scope="session")
def dags(airflow_database):
    """Every DAG of the repository, by id."""
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    return bag.dags
