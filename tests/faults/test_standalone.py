"""A driver on a worker of a real standalone cluster outlives its launcher, and is found and ended by others."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark
import pytest

from include.orchestration.launchers.launch import launcher
from tests.conftest import ROOT, free_port
from tests.support import expected
from tests.support.flows import FULL
from tests.support.pipeline import TOPIC, Pipeline, part
from tests.support.waiting import wait_until

FLOWS = {"bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model"}
SPARK_HOME = Path(pyspark.__file__).parent
LAUNCH = "from include.orchestration.launchers.launch import launcher; print(launcher().launch('main'))"


@dataclass(frozen=True)
class Cluster:
    """A master and one worker; `connection`: how Airflow is told of them."""

    worker: subprocess.Popen
    directory: Path
    connection: str

    def output(self) -> str:
        """What its drivers say last."""
        return "\n".join(file.read_text()[-3_000:] for file in sorted(self.directory.glob("work/driver-*/std*")))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("cluster")
    port, rest, ui = free_port(), free_port(), free_port()
    # Nothing of Sluice stands in it: all that a driver knows, it was handed by its launcher.
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    environment |= {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["SPARK_MASTER_OPTS"] = f"-Dspark.master.rest.enabled=true -Dspark.master.rest.port={rest}"

    def start(kind: str, *arguments: str) -> subprocess.Popen:
        command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments]
        with (directory / f"{kind}.log").open("ab") as log:
            return subprocess.Popen(
                [str(word) for word in command], env=environment, cwd=directory, stdout=log, stderr=subprocess.STDOUT
            )

    master = start("Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(ui))
    address = f"spark://127.0.0.1:{port}"
    resources = ["--cores", "2", "--memory", "2g", "--work-dir", str(directory / "work")]
    worker = start("Worker", *resources, "--host", "127.0.0.1", "--webui-port", str(free_port()), address)
    wait_until(lambda: workers(ui) == 1, 60, (directory / "Master.log").read_text)
    extra = {"deploy-mode": "cluster", "rest-port": rest}
    connection = {"conn_type": "spark", "host": "spark://127.0.0.1", "port": port, "extra": extra}
    yield Cluster(worker, directory, json.dumps(connection))
    for process in (worker, master):
        process.terminate()
        process.wait(30)


def workers(ui: int) -> int:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{ui}/json/", timeout=5) as answer:
            return json.load(answer)["aliveworkers"]
    except (OSError, ValueError):
        return 0


@pytest.fixture
def launch(cluster: Cluster, pipeline: Pipeline, monkeypatch) -> Iterator:
    """Launches the driver from a process that has ended when this returns, and gives the handle."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", cluster.connection)
    defaults = Path(pipeline.environment["SPARK_CONF_DIR"]) / "spark-defaults.conf"
    defaults.write_text(defaults.read_text() + "spark.cores.max 1\nspark.executor.memory 512m\n")
    environment = {**pipeline.environment, "AIRFLOW_CONN_SPARK_DEFAULT": cluster.connection}
    handles = []

    def run() -> str:
        done = subprocess.run(
            [sys.executable, "-c", LAUNCH], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        handles.append(done.stdout.splitlines()[-1])
        return handles[-1]

    yield run
    for handle in handles:
        launcher().kill(handle)


def wait_while_alive(cluster: Cluster, handle: str, condition: Callable[[], object]) -> None:
    wait_until(lambda: condition() or not launcher().is_alive(handle), 240, cluster.output)
    assert launcher().is_alive(handle), cluster.output()


def test_a_driver_on_a_worker_lives_by_itself_is_ended_whole_and_its_successor_goes_on(
    cluster: Cluster, pipeline: Pipeline, launch
):
    """Its successor: in the long form."""
    pipeline.produce(part(0))
    first = launch()
    wait_while_alive(cluster, first, lambda: set(pipeline.holders()) >= FLOWS)
    wait_while_alive(cluster, first, lambda: pipeline.count("gold.heart_rate_by_model") > 0)
    holder = pipeline.holders()["gold.heart_rate_by_model"]
    assert psutil.Process(holder.jvm.pid).ppid() == cluster.worker.pid
    assert "SLUICE" not in " ".join(psutil.Process(holder.jvm.pid).cmdline())
    assert json.loads(first)["submission"] in launcher().log("main", first)

    pipeline.produce(part(1))
    launcher().kill(first)
    assert not launcher().is_alive(first)
    assert not holder.jvm.is_alive
    wait_until(lambda: not holder.python.is_alive, 30)
    launcher().kill(first)
    if not FULL:
        return

    pipeline.produce(part(2))
    second = launch()
    wait_while_alive(cluster, second, lambda: set(pipeline.holders()) >= FLOWS)
    assert pipeline.holders()["gold.heart_rate_by_model"].jvm != holder.jvm
    right = expected.gold(expected.silver_and_quarantine(expected.messages(pipeline.servers, TOPIC))[0])
    wait_while_alive(cluster, second, lambda: pipeline.gold() == right)
    pipeline.assert_nothing_lost_or_doubled()
