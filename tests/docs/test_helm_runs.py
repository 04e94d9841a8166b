"""The Helm chart runs on a real Kubernetes: a flow's driver is a pod, which is killed and frozen, and taken over.

It needs root, Debian's containerd, runc, containernetworking-plugins, docker.io and debootstrap, and the programs of
tests/support/cluster/tools.py. `make cluster-test` runs it.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.support.cluster import image, node, services, tools
from tests.support.cluster.node import API, Node
from tests.support.cluster.services import Services
from tests.support.flows import only_in_full_runs
from tests.support.topic import Topic
from tests.support.waiting import wait_until

START_SECONDS, RECOVERY_SECONDS = 900, 600
CHART = ROOT / "deploy" / "helm" / "sluice"
# Of the user in the image.
USER = 10001
TABLE = """from include.spec import Kafka, Table

TABLE = Table(name="bronze.numbers", comment="Numbers of a test", source=Kafka("numbers"), interval_seconds=1)
"""
# What Airflow runs each minute.
SUPERVISOR = """
import time
from include import logs
from include.airflow.supervisor import reconcile
logs.start()
while True:
    print(reconcile.reconcile_all(), flush=True)
    time.sleep(5)
"""
ROWS = "from include.monitoring import status; print(status.rows('bronze.numbers') or 0)"
CONNECTION = {"conn_type": "spark", "host": f"k8s://{API}", "extra": {"deploy-mode": "cluster"}}


@dataclass
class Platform:
    """sent: the number of messages so far."""

    node: Node
    topic: Topic
    sent: int = 0

    def send(self, count: int = 1) -> None:
        self.topic.send(*range(self.sent, self.sent + count))
        self.sent += count

    def run(self, *words: str) -> str:
        entry = ("python", "-m", "include.containers.entry")
        return self.node.kubectl("exec", "supervisor", "--", *entry, *words, seconds=180)

    def rows(self) -> int:
        return int(self.run("python", "-c", ROWS).split()[-1])

    def drivers(self, *phases: str) -> dict[str, str]:
        """The phase of each driver's pod, by name; phases: only these."""
        pods = self.node.get("pods", "-l", "sluice-driver=main")["items"]
        found = {pod["metadata"]["name"]: pod["status"]["phase"] for pod in pods}
        return {name: phase for name, phase in found.items() if not phases or phase in phases}

    def details(self) -> str:
        pods = self.node.kubectl("get", "pods", "-o", "wide", code=None)
        words = ("logs", "--tail", "60", "--all-containers")
        logs = [self.node.kubectl(*words, name, code=None) for name in ("supervisor", *self.drivers())]
        return "\n".join([pods, *logs])[-12_000:]


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    absent = ", ".join(filter(None, (node.missing(), image.missing(), "" if os.geteuid() == 0 else "root")))
    if absent:
        pytest.skip(f"no Kubernetes can be started, because this machine lacks {absent}")
    engine = tools.directory() / "engine"
    engine.mkdir(parents=True, exist_ok=True)
    archive = image.build(engine, {"bronze/numbers.py": TABLE})
    directory = Path(tempfile.mkdtemp(prefix="sluice-k8s-", dir="/tmp"))
    try:
        with Node(directory).running() as cluster, services.running(directory) as given:
            cluster.import_image(archive)
            archive.unlink()
            topic = Topic(given.kafka, "numbers").create()
            _install(cluster, directory, given)
            yield Platform(cluster, topic)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


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
        "executor": {"coreRequest": "100m"},
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
        "sluice-spark": {"auth-secret": "of-drivers-and-executors"},
        # Airflow does not run here.
        "sluice-airflow": {"connection": "sqlite:////tmp/airflow.db", "fernet-key": ""},
    }
    storage = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return [
        *(
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
            for name, data in secrets.items()
        ),
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
def test_a_driver_that_is_killed_is_taken_over_and_loses_and_doubles_no_row(platform: Platform, capsys):
    platform.send(100)
    wait_until(lambda: platform.rows() == 100, START_SECONDS, platform.details, 3)
    [first] = platform.drivers("Running")

    killed_at = time.monotonic()
    platform.node.kubectl("delete", "pod", first, "--grace-period=0", "--force", "--wait=false")
    platform.send(100)
    wait_until(lambda: platform.rows() == 200, RECOVERY_SECONDS, platform.details, 1)
    with capsys.disabled():
        print(f"\na killed driver's successor had committed {time.monotonic() - killed_at:.0f} s after the kill")
    assert first not in platform.drivers("Running")
    assert "bronze.numbers" in platform.run("sluice", "verify")


@only_in_full_runs
def test_a_driver_whose_node_comes_back_after_it_was_taken_over_ends_itself(platform: Platform, capsys):
    [first] = platform.drivers("Running")
    container = _container(platform.node, first)

    frozen_at = time.monotonic()
    platform.node.ctr("tasks", "pause", container)
    try:
        platform.send(100)
        wait_until(lambda: platform.rows() == 300, RECOVERY_SECONDS, platform.details, 1)
        with capsys.disabled():
            print(f"\na frozen driver's successor had committed {time.monotonic() - frozen_at:.0f} s after it froze")
    finally:
        platform.node.ctr("tasks", "resume", container)
    wait_until(lambda: platform.drivers().get(first) != "Running", 60, platform.details, 1)
    platform.send(100)
    wait_until(lambda: platform.rows() == 400, RECOVERY_SECONDS, platform.details, 1)
    assert "bronze.numbers" in platform.run("sluice", "verify")


@only_in_full_runs
def test_the_watchdog_is_well_by_its_probes(platform: Platform):
    platform.node.kubectl("rollout", "status", "deployment/sluice-watchdog", "--timeout=300s", seconds=310)


def _container(cluster: Node, pod: str) -> str:
    """The id of the container of a pod."""
    status = cluster.get("pod", pod)["status"]["containerStatuses"][0]
    return str(status["containerID"]).removeprefix("containerd://")
