"""The Helm chart runs on a real Kubernetes, and its pods fail there in all the ways that one machine can show.

It needs root, Debian's containerd, runc, containernetworking-plugins, docker.io and debootstrap, and the programs of
tests/support/cluster/tools.py. `make cluster-test` runs it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tests.conftest import ROOT
from tests.support.cluster import image, node, services, tools
from tests.support.cluster.node import API, Node
from tests.support.cluster.services import Services
from tests.support.flows import only_in_full_runs
from tests.support.topic import Topic
from tests.support.waiting import wait_until

START_SECONDS, RECOVERY_SECONDS = 1_800, 1_800
CHART = ROOT / "deploy" / "helm" / "sluice"
# Of the user in the image.
USER = 10001
AUTH_SECRET = "of-drivers-and-executors"
FLOW, SLOW = "bronze.numbers", "silver.sums"
# A number from here on costs an executor tenths of a second, so that it can be ended in the middle of a batch.
SLOW_FROM = 1_000_000
TABLES = {
    "bronze/numbers.py": """from include.spec import Kafka, Table

TABLE = Table(name="bronze.numbers", comment="Numbers of a test", source=Kafka("numbers"), interval_seconds=1)
""",
    "silver/sums.py": f"""from include.spec import Delta, Table

TABLE = Table(
    name="silver.sums",
    comment="Numbers, each with a sum that takes its time if the number is large",
    source=Delta("bronze.numbers"),
    schema="number BIGINT, sum BIGINT",
    transform='''
        SELECT number, aggregate(sequence(1, IF(number < {SLOW_FROM}, 1, 4000000)), 0L, (sum, x) -> sum + x % 7) AS sum
        FROM (SELECT CAST(CAST(value AS STRING) AS BIGINT) AS number FROM source)
    ''',
    interval_seconds=1,
)
""",
}
# What Airflow runs each minute.
SUPERVISOR = """
import time
from include import logs
from include.airflow.supervisor import reconcile
from include.errors import SluiceError
logs.start()
while True:
    try:
        print(reconcile.reconcile_all(), flush=True)
    except SluiceError as error:
        print(error, flush=True)
    time.sleep(5)
"""
# What the task of a DAG runs.
JOB = f"""
from include import logs
from include.airflow import tasks
logs.start()
arguments = ["--table", "{SLOW}", "--full", "--alone"]
tasks.job("backfill", "backfill", arguments, "backfill {SLOW}").execute({{}})
"""
CONNECTION = {"conn_type": "spark", "host": f"k8s://{API}", "extra": {"deploy-mode": "cluster"}}


@dataclass
class Platform:
    """store: URL of the S3 store. sent: the numbers in the topic, in order."""

    node: Node
    topic: Topic
    store: str
    sent: list[int] = field(default_factory=list)

    def run(self, *words: str, seconds: float = RECOVERY_SECONDS) -> str:
        entry = ("python", "-m", "include.containers.entry")
        return self.node.kubectl("exec", "supervisor", "--", *entry, *words, seconds=seconds)

    def send(self, numbers: Iterable[int]) -> None:
        self.sent += numbers
        self.topic.send(*numbers)

    def stored(self, table: str) -> list[int]:
        """The numbers in a table, sorted."""
        column = "value" if table == FLOW else "number"
        location = f"s3://{services.BUCKET}/sluice/{table.replace('.', '/')}"
        options = {"AWS_ENDPOINT_URL": self.store, "AWS_REGION": services.REGION, "AWS_ALLOW_HTTP": "true"}
        options |= {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "none"}
        try:
            rows = DeltaTable(location, storage_options=options).to_pyarrow_table(columns=[column])
        except TableNotFoundError:
            return []
        return sorted(int(value) for value in rows[column].to_pylist())

    def has_all(self, table: str) -> bool:
        """Whether a table has as many rows as there are numbers."""
        return len(self.stored(table)) >= len(self.sent)

    def send_and_wait(self, seconds: float) -> None:
        """Send a hundred numbers, and wait until both tables have as many rows."""
        self.send(range(len(self.sent), len(self.sent) + 100))
        for table in (FLOW, SLOW):
            wait_until(partial(self.has_all, table), seconds, self.details, 1)

    def require_exact_rows(self) -> None:
        """Each number is in both tables, once, and by the ledger, too."""
        for table in (FLOW, SLOW):
            assert self.stored(table) == sorted(self.sent)
        assert FLOW in self.run("sluice", "verify")

    def drivers(self, *phases: str) -> list[str]:
        """The names of the pods of the driver of streams. phases: only these."""
        return self._pods("sluice-driver=main", phases)

    def executors(self) -> list[str]:
        return self._pods("spark-role=executor", ("Running",))

    def is_busy(self, executor: str) -> bool:
        """Whether it runs a task. Its log has a line for the begin and the end of each."""
        log = self.node.kubectl("logs", executor, code=None)
        ends = ("Running task", "Finished task")
        begun, ended = (set(re.findall(rf"{words} \S+ in stage \S+ \(TID (\d+)\)", log)) for words in ends)
        return bool(begun - ended)

    def _pods(self, label: str, phases: tuple[str, ...]) -> list[str]:
        pods = self.node.get("pods", "-l", label)["items"]
        return [pod["metadata"]["name"] for pod in pods if not phases or pod["status"]["phase"] in phases]

    def details(self) -> str:
        pods = self.node.kubectl("get", "pods", "-o", "wide", code=None)
        words = ("logs", "--tail", "40", "--all-containers")
        names = ("supervisor", *self.drivers(), *self.executors())
        return "\n".join([pods, *(self.node.kubectl(*words, name, code=None)[-4_000:] for name in names)])


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    absent = ", ".join(filter(None, (node.missing(), image.missing(), "" if os.geteuid() == 0 else "root")))
    if absent:
        pytest.skip(f"no Kubernetes can be started, because this machine lacks {absent}")
    engine = tools.directory() / "engine"
    engine.mkdir(parents=True, exist_ok=True)
    archive = image.build(engine, TABLES)
    directory = Path(tempfile.mkdtemp(prefix="sluice-k8s-", dir="/tmp"))
    try:
        with Node(directory).running() as cluster, services.running(directory) as given:
            cluster.import_image(archive)
            archive.unlink()
            topic = Topic(given.kafka, "numbers").create()
            _install(cluster, directory, given)
            yield Platform(cluster, topic, given.store)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def recovery(capsys) -> Callable[[str], Any]:
    """`with recovery("a driver that was evicted"):` prints how long its block took."""

    @contextmanager
    def measure(subject: str) -> Iterator[None]:
        began_at = time.monotonic()
        yield
        with capsys.disabled():
            print(f"\n{subject}: {time.monotonic() - began_at:.0f} s")

    return measure


def _install(cluster: Node, directory: Path, given: Services) -> None:
    home = directory / "home"
    home.mkdir()
    shutil.chown(home, USER, USER)
    cluster.apply(*_given_objects(home))
    values = {
        "image": {"repository": "docker.io/library/sluice", "tag": "test", "pullPolicy": "Never"},
        "settings": {
            "SLUICE_KAFKA": given.kafka,
            "SLUICE_CONTROL_URL": given.control,
            "SLUICE_LAKE": f"s3a://{services.BUCKET}/sluice",
            "AWS_ENDPOINT_URL": given.store,
            "AWS_REGION": services.REGION,
        },
        "home": {"existingClaim": "sluice-home"},
        # Of a machine with two cores.
        "driver": {"coreRequest": "100m"},
        "executor": {"coreRequest": "100m", "instances": 2},
        # This cluster has no DNS.
        "spark": {"spark.kubernetes.driver.master": API},
    }
    (directory / "values.json").write_text(json.dumps(values))
    command = [tools.fetch("helm"), "--kubeconfig", str(cluster.kubeconfig()), "install", "sluice", str(CHART)]
    result = subprocess.run(
        [*command, "--values", str(directory / "values.json"), "--timeout", "10m"], capture_output=True, text=True
    )
    assert result.returncode == 0, f"{result.stderr}{cluster.kubectl('get', 'events', code=None)}"
    cluster.apply(_supervisor())
    cluster.kubectl("wait", "--for=condition=Ready", "pod/supervisor", "--timeout=300s", seconds=310)


def _given_objects(home: Path) -> list[dict[str, Any]]:
    secrets = {
        "sluice-database": {"PGPASSWORD": services.PASSWORD},
        "sluice-storage": {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "none"},
        "sluice-spark": {"auth-secret": AUTH_SECRET},
        # Airflow does not run here.
        "sluice-airflow": {"connection": "sqlite:////tmp/airflow.db", "fernet-key": ""},
    }
    storage = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return [
        *(_secret(name, data) for name, data in secrets.items()),
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "sluice-home"},
            "spec": {**storage, "capacity": {"storage": "10Gi"}, "hostPath": {"path": str(home)}},
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "sluice-home"},
            "spec": {**storage, "volumeName": "sluice-home", "resources": {"requests": {"storage": "10Gi"}}},
        },
    ]


def _secret(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def _supervisor() -> dict[str, Any]:
    """A pod with the service account and the mounts of Airflow's scheduler, which starts drivers."""
    kinds = ("database", "storage")
    mounts = [{"name": kind, "mountPath": f"/run/secrets/sluice/{kind}"} for kind in kinds]
    container = {
        "name": "supervisor",
        "image": image.IMAGE,
        "imagePullPolicy": "Never",
        "args": ["python", "-c", SUPERVISOR],
        "envFrom": [{"configMapRef": {"name": "sluice-settings"}}],
        "env": [{"name": "AIRFLOW_CONN_SPARK_DEFAULT", "value": json.dumps(CONNECTION)}],
        "volumeMounts": [
            {"name": "home", "mountPath": "/var/lib/sluice"},
            {"name": "spark", "mountPath": "/etc/sluice"},
            *mounts,
        ],
    }
    volumes = [
        {"name": "home", "persistentVolumeClaim": {"claimName": "sluice-home"}},
        {"name": "spark", "configMap": {"name": "sluice-spark"}},
        *({"name": kind, "secret": {"secretName": f"sluice-{kind}"}} for kind in kinds),
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "supervisor"},
        "spec": {
            "serviceAccountName": "sluice-submitter",
            "securityContext": {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER},
            "containers": [container],
            "volumes": volumes,
        },
    }


@only_in_full_runs
def test_an_executor_that_does_not_know_the_secret_gets_no_task(platform: Platform):
    platform.send_and_wait(START_SECONDS)
    platform.require_exact_rows()
    cluster = platform.node
    pod = cluster.get("pod", platform.executors()[0])
    assert AUTH_SECRET not in json.dumps(pod)
    spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
    for volume in spec["volumes"]:
        if volume.get("secret", {}).get("secretName") == "sluice-spark":
            volume["secret"]["secretName"] = "sluice-other"
    cluster.apply(_secret("sluice-other", {"auth-secret": "a guess"}))
    cluster.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "intruder"}, "spec": spec})
    wait_until(lambda: _phase(cluster, "intruder") == "Failed", START_SECONDS, platform.details, 1)
    assert "AuthClientBootstrap" in cluster.kubectl("logs", "intruder", "--tail", "200")
    cluster.kubectl("delete", "pod", "intruder")


@only_in_full_runs
def test_a_bounded_job_is_a_pod_that_ends(platform: Platform, recovery):
    with recovery("a backfill as a pod"):
        platform.run("python", "-c", JOB)
    [pod] = platform.node.get("pods", "-l", "sluice-driver=backfill-silver-sums")["items"]
    assert pod["status"]["phase"] == "Succeeded"
    platform.send_and_wait(RECOVERY_SECONDS)
    platform.require_exact_rows()


@only_in_full_runs
def test_an_executor_that_is_deleted_within_a_batch_loses_and_doubles_no_row(platform: Platform, recovery):
    platform.send(range(SLOW_FROM, SLOW_FROM + 100))
    wait_until(partial(platform.has_all, FLOW), RECOVERY_SECONDS, platform.details)
    # What runs now is the batch of the other table.
    busy: list[str] = []
    wait_until(lambda: busy.extend(filter(platform.is_busy, platform.executors())) or busy, RECOVERY_SECONDS)
    platform.node.kubectl("delete", "pod", busy[0], "--grace-period=0", "--force", "--wait=false")
    assert not platform.has_all(SLOW), "its batch was over before"
    with recovery("an executor that was deleted"):
        platform.send_and_wait(RECOVERY_SECONDS)
    assert busy[0] not in platform.executors()
    platform.require_exact_rows()


@only_in_full_runs
def test_a_driver_that_is_killed_is_taken_over_and_loses_and_doubles_no_row(platform: Platform, recovery):
    [first] = platform.drivers("Running")
    platform.node.kubectl("delete", "pod", first, "--grace-period=0", "--force", "--wait=false")
    with recovery("a driver that was killed"):
        platform.send_and_wait(RECOVERY_SECONDS)
    assert first not in platform.drivers()
    platform.require_exact_rows()


@only_in_full_runs
def test_a_driver_that_is_evicted_is_taken_over_and_loses_and_doubles_no_row(platform: Platform, recovery):
    [first] = platform.drivers("Running")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": first, "namespace": "default"}}
    path = f"/api/v1/namespaces/default/pods/{first}/eviction"
    platform.node.kubectl("create", "--raw", path, "-f", "-", given=json.dumps(eviction))
    with recovery("a driver that was evicted"):
        platform.send_and_wait(RECOVERY_SECONDS)
    assert first not in platform.drivers("Running")
    platform.require_exact_rows()


@only_in_full_runs
def test_a_driver_that_is_frozen_on_a_node_that_works_is_ended_by_the_supervisor(platform: Platform, recovery):
    [first] = platform.drivers("Running")
    signal_all(platform.node.processes_of(first), signal.SIGSTOP)
    with recovery("a driver that froze"):
        platform.send_and_wait(RECOVERY_SECONDS)
    wait_until(lambda: first not in platform.drivers("Running"), RECOVERY_SECONDS, platform.details, 1)
    platform.require_exact_rows()


@only_in_full_runs
def test_a_driver_whose_node_is_lost_is_taken_over_and_ends_itself_if_the_node_comes_back(platform: Platform, recovery):
    """Without what ends its container, nobody confirms the end of a frozen driver."""
    [first] = platform.drivers("Running")
    processes = platform.node.processes_of(first)
    shim = processes[0].parent()
    assert shim is not None
    assert shim.name().startswith("containerd-shim")
    signal_all([*processes, shim], signal.SIGSTOP)
    try:
        with recovery("a driver whose node was lost"):
            platform.send_and_wait(RECOVERY_SECONDS)
        assert all(process.status() == psutil.STATUS_STOPPED for process in processes)
        signal_all(processes, signal.SIGCONT)
        wait_until(lambda: not any(map(_is_alive, processes)), RECOVERY_SECONDS, platform.details, 1)
    finally:
        shim.send_signal(signal.SIGCONT)
    platform.send_and_wait(RECOVERY_SECONDS)
    platform.require_exact_rows()


@only_in_full_runs
def test_the_watchdog_is_well_by_its_probes(platform: Platform):
    platform.node.kubectl("rollout", "status", "deployment/sluice-watchdog", "--timeout=300s", seconds=310)


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        process.send_signal(number)


def _is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _phase(cluster: Node, pod: str) -> str:
    return str(cluster.get("pod", pod)["status"]["phase"])
