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
from sqlalchemy import update

from include import catalog
from include.airflow.launchers.launch import launcher
from include.airflow.launchers.standalone import Standalone
from include.airflow.supervisor import executors
from include.containers import compose_env, entry
from include.control.flows import sizing
from include.control.flows.scale import Reason
from include.control.store import database
from include.control.store.schema import scale_decisions
from include.errors import Unreachable
from include.monitoring import query_progress
from include.settings import settings
from tests.conftest import ROOT, free_port
from tests.support import expected
from tests.support.flows import FULL
from tests.support.pipeline import TOPIC, Pipeline, random_events
from tests.support.waiting import wait_until

TABLE = "bronze.tracker_events"
FLOWS = {"bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model"}
SPARK_HOME = Path(pyspark.__file__).parent
# Of the settings of the containers, those that every driver needs.
FOR_DRIVERS = ("spark.authenticate", "spark.network.crypto")
LAUNCH = "from include.airflow.launchers.launch import launcher; print(launcher().launch('main'))"


@dataclass(frozen=True)
class Cluster:
    """A master and one worker. connection: the Airflow connection to the cluster, as JSON. rest: URL of its API."""

    worker: subprocess.Popen
    directory: Path
    connection: str
    rest: str

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
    resources = ["--cores", "4", "--memory", "3g", "--work-dir", str(directory / "work")]
    worker = start("Worker", *resources, "--host", "127.0.0.1", "--webui-port", str(free_port()), address)
    extra = {"deploy-mode": "cluster", "rest-port": rest_port}
    connection = {"conn_type": "spark", "host": "spark://127.0.0.1", "port": port, "extra": extra}
    connection["password"] = secrets["SPARK_REST_KEY"]
    try:
        wait_until(lambda: worker_count(ui_port) == 1, 180, (directory / "Master.log").read_text)
        yield Cluster(worker, directory, json.dumps(connection), f"http://127.0.0.1:{rest_port}")
    finally:
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
def launch(cluster: Cluster, pipeline: Pipeline, monkeypatch) -> Iterator:
    """`launch()` launches the driver from a process that ends before the call returns. Returns the handle."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", cluster.connection)
    defaults = Path(pipeline.environment["SPARK_CONF_DIR"]) / "spark-defaults.conf"
    lines = [defaults.read_text(), "spark.cores.max 1", "spark.executor.memory 512m", *cluster.driver_settings(), ""]
    defaults.write_text("\n".join(lines))
    environment = {**pipeline.environment, "AIRFLOW_CONN_SPARK_DEFAULT": cluster.connection}
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
    wait_until(lambda: condition() or not launcher().is_alive(handle), 600, cluster.output)
    assert launcher().is_alive(handle), cluster.output()


def executor_count(cluster: Cluster) -> int:
    """The executors that the worker runs."""
    processes = [process for process in psutil.Process(cluster.worker.pid).children() if process.is_running()]
    return sum("CoarseGrainedExecutorBackend" in " ".join(process.cmdline()) for process in processes)


def decide(pipeline: Pipeline) -> Reason:
    """One run of the supervisor's decisions, a minute after the one before. Returns the reason of the newest one."""
    with database.transaction(pipeline.control) as connection:
        connection.execute(update(scale_decisions).values(at=scale_decisions.c.at - 60))
    executors.scale_all(pipeline.control, catalog.load())
    decisions = sizing.decisions(pipeline.control, "main", 1)
    assert decisions and decisions[0].is_replayed
    return decisions[0].reason


@pytest.fixture
def as_supervisor(pipeline: Pipeline, monkeypatch) -> Iterator[None]:
    """This process has the settings of the pipeline."""
    for name, value in pipeline.environment.items():
        if name.startswith("SLUICE_"):
            monkeypatch.setenv(name, value)
    settings.cache_clear()
    yield
    monkeypatch.undo()
    settings.cache_clear()


# Each unread row is to be read within a second, so that a burst of seconds needs all executors.
@pytest.mark.parametrize(
    "pipeline", [{"SLUICE_EXECUTORS": "main=1-3", "SLUICE_CATCH_UP_SECONDS": "1"}], indirect=True, ids=["1-3"]
)
@pytest.mark.usefixtures("as_supervisor")
def test_a_driver_gets_more_executors_in_a_burst_and_fewer_after_it(cluster: Cluster, pipeline: Pipeline, launch):
    executors.scale_all(pipeline.control, catalog.load())
    pipeline.produce_next()
    handle = launch()
    wait_while_alive(cluster, handle, lambda: set(pipeline.holders()) >= FLOWS)
    wait_while_alive(cluster, handle, lambda: pipeline.count("gold.heart_rate_by_model") > 0)
    # Batches of several sizes tell what a row costs.
    for count in (200, 1_000, 3_000, 6_000):
        rows = pipeline.count(TABLE)
        pipeline.produce_next(count)
        wait_while_alive(cluster, handle, lambda rows=rows, count=count: pipeline.count(TABLE) >= rows + count)
    # Arrivals are those of two minutes, in which the flows have to be at work.
    wait_while_alive(cluster, handle, lambda: decide(pipeline) is not Reason.UNKNOWN)
    wait_while_alive(cluster, handle, lambda: executor_count(cluster) == 1)

    def burst() -> Reason:
        pipeline.produce_next(10_000)
        return decide(pipeline)

    wait_while_alive(cluster, handle, lambda: burst() is Reason.MORE)
    wait_while_alive(cluster, handle, lambda: executor_count(cluster) == 3)
    wait_while_alive(cluster, handle, lambda: sizing.sizes(pipeline.control)["main"].running == 3)
    pipeline.wait_until_gold_is_right(600)
    pipeline.produce_next()
    wait_while_alive(cluster, handle, lambda: decide(pipeline) is Reason.LESS)
    wait_while_alive(cluster, handle, lambda: executor_count(cluster) == 1)
    pipeline.wait_until_gold_is_right(600)
    pipeline.assert_nothing_lost_or_doubled()
    journaled = {row["executors"] for row in query_progress.newest(TABLE, 1_000) if row["input_rows"]}
    assert {1, 3} <= journaled


@pytest.mark.parametrize("key", ["", urlsafe_b64encode(bytes(32)).decode()], ids=["no token", "a token of another key"])
def test_the_master_starts_no_driver_without_a_token_of_its_key(cluster: Cluster, pipeline: Pipeline, key: str):
    with pytest.raises(Unreachable, match="takes no driver .HTTP Error 403"):
        Standalone("spark://127.0.0.1:1", cluster.rest, key).launch("main")


def test_a_driver_on_a_worker_lives_by_itself_is_ended_whole_and_its_successor_goes_on(
    cluster: Cluster, pipeline: Pipeline, launch
):
    """Only the full form starts a successor."""
    pipeline.produce(random_events(0))
    first_handle = launch()
    wait_while_alive(cluster, first_handle, lambda: set(pipeline.holders()) >= FLOWS)
    wait_while_alive(cluster, first_handle, lambda: pipeline.count("gold.heart_rate_by_model") > 0)
    holder = pipeline.holders()["gold.heart_rate_by_model"]
    assert psutil.Process(holder.jvm.pid).ppid() == cluster.worker.pid
    assert "SLUICE" not in " ".join(psutil.Process(holder.jvm.pid).cmdline())
    assert json.loads(first_handle)["submission"] in launcher().log("main", first_handle)

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
