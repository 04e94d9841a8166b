"""A driver on a worker of a standalone cluster outlives its launcher. Other processes find and kill the driver.

The cluster has the settings of the containers: it authenticates whoever talks to it.
"""

import json
import os
import subprocess
import sys
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
import pytest

from include.airflow.launchers.launch import launcher
from include.airflow.launchers.standalone import Standalone
from include.containers import compose_env, entry
from include.errors import Unreachable
from tests.conftest import ROOT, free_port
from tests.support import expected
from tests.support.flows import FULL
from tests.support.pipeline import TOPIC, Pipeline, random_events
from tests.support.planted import Planted
from tests.support.secrets_search import files_with, holds, processes_with
from tests.support.waiting import wait_until

FLOWS = {"bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model"}
SPARK_HOME = Path(pyspark.__file__).parent
# Of the settings of the containers, those that every driver needs.
FOR_DRIVERS = ("spark.authenticate", "spark.network.crypto")
LAUNCH = "from include.airflow.launchers.launch import launcher; print(launcher().launch('main'))"


@dataclass(frozen=True)
class Cluster:
    """A master and one worker. connection: the Airflow connection to the cluster, as JSON. rest: URL of its API.
    secrets: that master and worker know.
    """

    worker: subprocess.Popen
    directory: Path
    connection: str
    rest: str
    secrets: tuple[str, ...]

    def driver_settings(self) -> list[str]:
        lines = (self.directory / "conf" / "spark-defaults.conf").read_text().splitlines()
        return [line for line in lines if line.startswith(FOR_DRIVERS)]

    def output(self) -> str:
        """The end of the output of all drivers."""
        return "\n".join(file.read_text()[-3_000:] for file in sorted(self.directory.glob("work/driver-*/std*")))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    port, rest_port, ui_port = free_port(), free_port(), free_port()
    # The cluster has no variables of Sluice, so a driver has only the settings that its launcher passes.
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    conf = directory / "conf"
    environment |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_CONF_DIR": str(conf)}
    secrets = {name: compose_env.VALUES[name]() for name in entry.SECRETS}
    entry.write_spark(conf, secrets)
    own = {
        "spark.master.rest.port": rest_port,
        "spark.deploy.recoveryDirectory": directory / "recovery",
        "spark.local.dir": directory / "tmp",
    }
    with (conf / "spark-defaults.conf").open("a") as defaults:
        defaults.writelines(f"{name} {value}\n" for name, value in own.items())

    def start(kind: str, *arguments: str) -> subprocess.Popen:
        command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments]
        with (directory / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(
                [str(word) for word in command], env=environment, cwd=directory, stdout=log, stderr=subprocess.STDOUT
            )

    master = start("Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui_port))
    address = f"spark://127.0.0.1:{port}"
    resources = ["--cores", "2", "--memory", "2g", "--work-dir", str(directory / "work")]
    worker = start("Worker", *resources, "--host", "127.0.0.1", "--webui-port", str(free_port()), address)
    wait_until(lambda: worker_count(ui_port) == 1, 60, (directory / "Master.log").read_text)
    extra = {"deploy-mode": "cluster", "rest-port": rest_port}
    connection = {"conn_type": "spark", "host": "spark://127.0.0.1", "port": port, "extra": extra}
    connection["password"] = secrets["SPARK_REST_KEY"]
    yield Cluster(worker, directory, json.dumps(connection), f"http://127.0.0.1:{rest_port}", tuple(secrets.values()))
    for process in (worker, master):
        process.terminate()
        process.wait(30)


def worker_count(ui_port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ui_port}/json/", timeout=5) as response:
            return json.load(response)["aliveworkers"]
    except (OSError, ValueError):
        return 0


@pytest.fixture
def planted(tmp_path: Path) -> Planted:
    return Planted(tmp_path / "secrets")


@pytest.fixture
def launch(cluster: Cluster, pipeline: Pipeline, planted: Planted, monkeypatch) -> Iterator:
    """`launch()` launches the driver from a process that ends before the call returns. Returns the handle."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", cluster.connection)
    defaults = Path(pipeline.environment["SPARK_CONF_DIR"]) / "spark-defaults.conf"
    lines = [defaults.read_text(), "spark.cores.max 1", "spark.executor.memory 512m", *cluster.driver_settings(), ""]
    defaults.write_text("\n".join(lines))
    environment = {**planted.variables, **pipeline.environment, "AIRFLOW_CONN_SPARK_DEFAULT": cluster.connection}
    handles = []

    def run() -> str:
        result = subprocess.run(
            [sys.executable, "-c", LAUNCH], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert result.returncode == 0, result.stderr
        handles.append(result.stdout.splitlines()[-1])
        return handles[-1]

    yield run
    for handle in handles:
        launcher().kill(handle)


def wait_while_alive(cluster: Cluster, handle: str, condition: Callable[[], object]) -> None:
    wait_until(lambda: condition() or not launcher().is_alive(handle), 240, cluster.output)
    assert launcher().is_alive(handle), cluster.output()


def test_the_master_starts_no_driver_without_a_token_of_its_key(cluster: Cluster, pipeline: Pipeline):
    for key in ("", urlsafe_b64encode(bytes(32)).decode()):
        with pytest.raises(Unreachable, match="takes no driver .HTTP Error 403"):
            Standalone("spark://127.0.0.1:1", cluster.rest, key).launch("main")


def test_a_driver_on_a_worker_lives_by_itself_is_ended_whole_and_its_successor_goes_on(
    cluster: Cluster, pipeline: Pipeline, launch, planted: Planted
):
    """Only the full form starts a successor. Whoever launches knows secrets of all kinds, which go nowhere."""
    pipeline.produce(random_events(0))
    first_handle = launch()
    wait_while_alive(cluster, first_handle, lambda: set(pipeline.holders()) >= FLOWS)
    wait_while_alive(cluster, first_handle, lambda: pipeline.count("gold.heart_rate_by_model") > 0)
    holder = pipeline.holders()["gold.heart_rate_by_model"]
    assert psutil.Process(holder.jvm.pid).ppid() == cluster.worker.pid
    assert "SLUICE" not in " ".join(psutil.Process(holder.jvm.pid).cmdline())
    submission = json.loads(first_handle)["submission"]
    assert submission in launcher().log("main", first_handle)
    recovery, hidden = cluster.directory / "recovery", [*planted.tokens, *cluster.secrets]
    assert files_with([submission], recovery), "the master keeps what it was sent there"
    kept = [recovery, cluster.directory / "work", pipeline.home / "log"]
    assert {file for folder in kept for file in files_with(hidden, folder)} == set()
    assert processes_with(hidden) == []
    logs = [cluster.directory / f"{name}.log" for name in ("Master", "Worker")]
    assert [log for log in logs if holds(log.read_bytes(), hidden)] == []

    pipeline.produce(random_events(1))
    launcher().kill(first_handle)
    assert not launcher().is_alive(first_handle)
    assert not holder.jvm.is_alive
    wait_until(lambda: not holder.python.is_alive, 30)
    launcher().kill(first_handle)
    if not FULL:
        return

    pipeline.produce(random_events(2))
    second_handle = launch()
    wait_while_alive(cluster, second_handle, lambda: set(pipeline.holders()) >= FLOWS)
    assert pipeline.holders()["gold.heart_rate_by_model"].jvm != holder.jvm
    expected_gold = expected.gold(expected.silver_and_quarantine(expected.messages(pipeline.servers, TOPIC))[0])
    wait_while_alive(cluster, second_handle, lambda: pipeline.gold() == expected_gold)
    pipeline.assert_nothing_lost_or_doubled()
