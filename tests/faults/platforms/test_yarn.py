"""Drivers and bounded jobs on a real YARN of one node: killed, taken over, and their state told. `make yarn-test`"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from include.airflow.launchers import submit
from include.airflow.launchers.yarn import Yarn
from include.settings import settings
from tests.conftest import ROOT, free_port
from tests.support import expected, postgresql, yarn
from tests.support.flows import only_in_full_runs
from tests.support.pipeline import TOPIC, Pipeline, random_events
from tests.support.waiting import wait_until

pytestmark = [
    only_in_full_runs,
    pytest.mark.skipif(not (settings().jars / "yarn").exists(), reason="make yarn-test fetches a YARN"),
]
FLOWS = {"bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model"}
PORT = free_port()
PASSWORD = "hush-yarn"
URL = f"postgresql+psycopg://driver@127.0.0.1:{PORT}/postgres"
# Several JVMs start at once, so that a driver may not renew its lease for long.
SETTINGS = {"SLUICE_CONTROL_URL": URL, "SLUICE_LEASE_SECONDS": "90"}
# Of a process that ends before the driver has started, as a task of Airflow.
CALL = """
import sys
from pathlib import Path
from include.airflow.launchers.launch import launcher
print(launcher().submit(Path(sys.argv[1]), sys.argv[3:], sys.argv[2]))
"""
START_SECONDS = 1_200


@pytest.fixture(scope="module", autouse=True)
def server(tmp_path_factory) -> Iterator[None]:
    """A control database that asks for a password, which is in a file."""
    instance = postgresql.Server(PORT)
    instance.start()
    instance.add_user("driver", PASSWORD)
    file = tmp_path_factory.mktemp("secrets") / "pgpass"
    file.write_text(f"127.0.0.1:{PORT}:*:driver:{PASSWORD}\n")
    file.chmod(0o600)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PGPASSFILE", str(file))
        yield
    instance.remove()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[yarn.Yarn]:
    instance = yarn.Yarn(tmp_path_factory.mktemp("yarn"))
    try:
        instance.start()
        yield instance
    finally:
        instance.stop()


@pytest.fixture
def start(cluster: yarn.Yarn, pipeline: Pipeline) -> Iterator[Callable[..., str]]:
    """`start(name, *arguments)` starts jobs/stream.py from a process of its own. Returns the handle."""
    defaults = Path(pipeline.environment["SPARK_CONF_DIR"]) / "spark-defaults.conf"
    with defaults.open("a") as file:
        file.write("spark.executor.instances 1\nspark.executor.memory 512m\nspark.ui.enabled false\n")
        # Otherwise Spark names the address of another interface than the one that it listens on.
        file.write("spark.yarn.appMasterEnv.SPARK_LOCAL_IP 127.0.0.1\n")
    extra = {"deploy-mode": "cluster", "resource-manager": cluster.url}
    connection = json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra})
    environment = {"AIRFLOW_CONN_SPARK_DEFAULT": connection, "HADOOP_CONF_DIR": str(cluster.conf)}
    handles = []

    def run(name: str, *arguments: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", CALL, str(submit.JOB), name, *arguments],
            env={**pipeline.environment, **environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert result.returncode == 0, result.stderr
        handles.append(result.stdout.splitlines()[-1])
        return handles[-1]

    yield run
    for handle in handles:
        Yarn(cluster.url).kill(handle)


def wait_for_state(cluster: yarn.Yarn, handle: str, state: str) -> None:
    wait_until(lambda: Yarn(cluster.url).state(handle), START_SECONDS, cluster.output)
    assert Yarn(cluster.url).state(handle) == state, cluster.output()


def wait_while_alive(cluster: yarn.Yarn, handle: str, condition: Callable[[], object]) -> None:
    wait_until(lambda: condition() or Yarn(cluster.url).state(handle), START_SECONDS, cluster.output)
    assert Yarn(cluster.url).is_alive(handle), cluster.output()


def expected_gold(pipeline: Pipeline) -> dict:
    return expected.gold(expected.silver_and_quarantine(expected.messages(pipeline.servers, TOPIC))[0])


def command_lines() -> Iterator[str]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            yield " ".join(process.cmdline())


@pytest.mark.parametrize("pipeline", [SETTINGS], indirect=True)
def test_a_driver_that_is_killed_has_failed_and_its_successor_goes_on_until_it_is_ended(
    cluster: yarn.Yarn, pipeline: Pipeline, start
):
    launcher = Yarn(cluster.url)
    pipeline.produce(random_events(0))
    first = start("main", "--driver", "main")
    wait_while_alive(cluster, first, lambda: pipeline.count("gold.heart_rate_by_model") > 0)
    assert not [line for line in command_lines() if PASSWORD in line]
    holder = pipeline.holders()["gold.heart_rate_by_model"]
    os.kill(holder.jvm.pid, signal.SIGKILL)
    wait_for_state(cluster, first, "FAILED")

    pipeline.produce(random_events(1))
    second = start("main", "--driver", "main")
    wait_while_alive(cluster, second, lambda: set(pipeline.holders()) >= FLOWS)
    holder = pipeline.holders()["gold.heart_rate_by_model"]
    wait_while_alive(cluster, second, lambda: pipeline.gold() == expected_gold(pipeline))
    launcher.kill(second)
    assert not holder.jvm.is_alive
    assert not holder.python.is_alive
    assert launcher.state(second) == "KILLED"
    launcher.kill(second)
    pipeline.assert_nothing_lost_or_doubled()


@pytest.mark.parametrize("pipeline", [SETTINGS], indirect=True)
def test_a_bounded_job_ends_finished_or_failed_and_one_that_yarn_does_not_know_is_lost(
    cluster: yarn.Yarn, pipeline: Pipeline, start
):
    pipeline.produce(random_events(0))
    good = start("one run", "--once", "--flow", "bronze.tracker_events")
    wait_for_state(cluster, good, "FINISHED")
    assert pipeline.count("bronze.tracker_events") == 3_000
    wrong = start("a wrong run", "--driver", "nobody")
    wait_for_state(cluster, wrong, "FAILED")
    unknown = json.dumps({**json.loads(wrong), "tag": "sluice-unknown"})
    assert Yarn(cluster.url).state(unknown) == "LOST"
