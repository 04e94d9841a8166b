"""Drivers on Kubernetes: what is submitted, and what the answers of its API mean."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from include.airflow.launchers import kubernetes, submit
from include.airflow.launchers.kubernetes import Kubernetes
from include.control.leases.process import Process
from include.errors import SluiceError, Unreachable, UsageError
from include.settings import settings
from tests.support.waiting import wait_until

URL = "postgresql+psycopg://sluice@db.example/control"
POD = "/api/v1/namespaces/streams/pods/"


@dataclass
class Api:
    """An API server that knows some pods, and answers one after the other for those that `answers` has."""

    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    answers: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    master: str = ""

    def add(self, name: str, phase: str, created_at: str = "2026-01-01T00:00:00Z", **metadata: str) -> None:
        self.pods[name] = {
            "metadata": {"name": name, "creationTimestamp": created_at, **metadata},
            "status": {"phase": phase},
        }

    def answer(self, method: str, path: str) -> tuple[int, dict[str, Any]]:
        self.requests.append(f"{method} {path}")
        if self.answers:
            return self.answers.pop(0)
        place, _, query = path.partition("?")
        if place == POD.rstrip("/"):
            return 200, {"items": list(self.pods.values())}
        name = place.removeprefix(POD)
        if name not in self.pods:
            return 404, {"message": "not found"}
        return 200, self.pods.pop(name) if method == "DELETE" else self.pods[name]


@pytest.fixture
def api() -> Iterator[Api]:
    api = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            api.tokens.add(self.headers["Authorization"])
            status, answer = api.answer(self.command, self.path)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_DELETE = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    api.master = f"k8s://http://127.0.0.1:{server.server_address[1]}"
    yield api
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def control_database(own_settings) -> Callable[[str], None]:
    def set_url(url: str) -> None:
        own_settings(SLUICE_CONTROL_URL=url)

    set_url(URL)
    return set_url


@pytest.fixture(autouse=True)
def service_account(tmp_path: Path, monkeypatch) -> Path:
    authorities = ssl.create_default_context().get_ca_certs(binary_form=True)
    (tmp_path / "ca.crt").write_text(ssl.DER_cert_to_PEM_cert(authorities[0]))
    (tmp_path / "token").write_text("my-token\n")
    (tmp_path / "namespace").write_text("streams")
    monkeypatch.setattr(kubernetes, "SERVICE_ACCOUNT", tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def submissions(tmp_path: Path, monkeypatch) -> Path:
    """A spark-submit that writes its arguments to this file, one a line, and ends."""
    script, calls = tmp_path / "spark-submit", tmp_path / "submissions"
    script.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >> '{calls}'\n")
    script.chmod(0o755)
    calls.touch()
    monkeypatch.setattr(submit, "SPARK_SUBMIT", script)
    return calls


def submitted(handle: str, submissions: Path) -> list[str]:
    """The arguments of spark-submit, once it has ended."""
    wait_until(lambda: not Process(**json.loads(handle)["submitter"]).is_alive, 10)
    return submissions.read_text().splitlines()


def conf(words: list[str]) -> dict[str, str]:
    pairs = [words[index + 1] for index, word in enumerate(words) if word == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def test_a_driver_is_a_pod_of_the_image_whose_files_nobody_uploads(api: Api, submissions: Path):
    handle = Kubernetes(api.master).launch("Main driver_2")
    words = submitted(handle, submissions)
    assert words[:4] == ["--master", api.master, "--deploy-mode", "cluster"]
    assert words[-5:] == ["--name", "sluice main-driver-2", f"local://{submit.JOB}", "--driver", "Main driver_2"]
    assert not {"--jars", "--py-files", "--files"} & {*words}
    properties = conf(words)
    assert properties["spark.kubernetes.driver.pod.name"] == json.loads(handle)["pod"]
    assert properties["spark.kubernetes.driver.pod.name"].startswith("sluice-main-driver-2-")
    assert properties["spark.kubernetes.driver.label.sluice-driver"] == "main-driver-2"
    assert properties["spark.kubernetes.submission.waitAppCompletion"] == "false"
    assert properties["spark.driver.extraClassPath"] == settings().spark_class_path
    assert properties["spark.executor.extraClassPath"] == settings().spark_class_path
    assert properties["spark.kubernetes.driverEnv.SLUICE_CONTROL_URL"] == URL
    assert properties["spark.kubernetes.driverEnv.SLUICE_HOME"] == str(settings().home)


def test_the_namespace_is_that_of_the_connection_or_of_this_pod(api: Api):
    assert conf(Kubernetes(api.master).options("pod", "main"))["spark.kubernetes.namespace"] == "streams"
    assert conf(Kubernetes(api.master, "other").options("pod", "main"))["spark.kubernetes.namespace"] == "other"


def test_a_driver_is_told_the_files_of_its_kafka_clusters_and_nothing_in_them(api: Api, own_settings, tmp_path: Path):
    file = tmp_path / "eu.properties"
    file.write_text("bootstrap.servers=one:1\nsasl.jaas.config=hush\n")
    own_settings(SLUICE_KAFKA_EU_CONFIG=file)
    options = Kubernetes(api.master).options("pod", "main")
    assert conf(options)["spark.kubernetes.driverEnv.SLUICE_KAFKA_EU_CONFIG"] == str(file)
    assert "hush" not in " ".join(options)


def test_a_setting_that_nobody_called_public_is_not_handed_on(api: Api, monkeypatch):
    monkeypatch.setenv("SLUICE_SOME_HOOK", "hush")
    assert "hush" not in " ".join(Kubernetes(api.master).options("pod", "main"))


def test_a_password_never_stands_on_the_command_line(api: Api, control_database, submissions: Path):
    for url in (URL.replace("@", ":hush@"), f"{URL}?password=hush"):
        control_database(url)
        with pytest.raises(UsageError, match="the secret of the pods, a file PGPASSWORD") as error:
            Kubernetes(api.master).launch("main")
        assert "hush" not in str(error.value)
    assert submissions.read_text() == ""


def test_a_control_database_in_a_file_of_this_machine_is_refused(api: Api, control_database):
    control_database("sqlite:////somewhere/control.db")
    with pytest.raises(UsageError, match="SLUICE_CONTROL_URL is SQLite.*set it to a PostgreSQL"):
        Kubernetes(api.master).launch("main")


def test_outside_of_a_cluster_the_launcher_says_where_airflow_belongs(api: Api, service_account: Path):
    (service_account / "token").unlink()
    with pytest.raises(UsageError, match="token cannot be read .No such file.*: run Airflow in the cluster"):
        Kubernetes(api.master, "streams").launch("main")


@pytest.mark.parametrize(
    ("phase", "state"),
    [("Pending", None), ("Running", None), ("Unknown", None), ("Succeeded", "FINISHED"), ("Failed", "FAILED")],
)
def test_the_phase_of_a_pod_is_its_state(api: Api, submissions: Path, phase: str, state: str | None):
    handle = Kubernetes(api.master).launch("main")
    submitted(handle, submissions)
    api.add(json.loads(handle)["pod"], phase)
    assert Kubernetes(api.master).state(handle) == state
    assert Kubernetes(api.master).is_alive(handle) is (state is None)
    assert api.tokens == {"Bearer my-token"}


def test_a_pod_that_is_gone_is_lost(api: Api, submissions: Path):
    handle = Kubernetes(api.master).launch("main")
    submitted(handle, submissions)
    assert Kubernetes(api.master).state(handle) == "LOST"


def test_a_pod_whose_node_does_not_confirm_its_end_in_time_is_lost(api: Api, submissions: Path):
    handle = Kubernetes(api.master).launch("main")
    submitted(handle, submissions)
    pod = json.loads(handle)["pod"]
    api.add(pod, "Running", deletionTimestamp="2999-01-01T00:00:00Z")
    assert Kubernetes(api.master).is_alive(handle)
    api.add(pod, "Running", deletionTimestamp="2026-01-01T00:00:00Z")
    assert Kubernetes(api.master).state(handle) == "LOST"


def test_a_pod_may_live_while_its_submission_runs_or_kubernetes_does_not_answer(api: Api, submissions: Path, tmp_path):
    submit.SPARK_SUBMIT.write_text(f"#!/bin/sh\nwhile ! test -e '{tmp_path}/go'; do sleep 0.05; done\n")
    handle = Kubernetes(api.master).launch("main")
    assert Kubernetes(api.master).is_alive(handle)
    (tmp_path / "go").touch()
    submitted(handle, submissions)
    api.answers = [(500, {"message": "etcd is away"})]
    assert Kubernetes(api.master).is_alive(handle)
    assert Kubernetes("k8s://http://127.0.0.1:1").is_alive(handle)
    assert not Kubernetes(api.master).is_alive(handle)


def test_a_pod_is_killed_until_its_node_confirms_its_end_and_one_that_is_gone_is_left_alone(
    api: Api, submissions: Path, monkeypatch
):
    handle = Kubernetes(api.master).launch("main")
    submitted(handle, submissions)
    pod = json.loads(handle)["pod"]
    api.requests.clear()
    api.answers = [(200, {}), (200, {})]
    Kubernetes(api.master).kill(handle)
    assert api.requests == [f"DELETE {POD}{pod}?gracePeriodSeconds=1"] * 3
    Kubernetes(api.master).kill(handle)

    monkeypatch.setattr(kubernetes, "KILL_SECONDS", 0)
    api.answers = [(200, {}), (200, {})]
    with pytest.raises(SluiceError, match=f"{pod} outlives the order to end: see that its node works"):
        Kubernetes(api.master).kill(handle)
    api.answers = [(403, {"message": "forbidden"})]
    with pytest.raises(Unreachable, match=f"{pod} cannot be ended .*forbidden"):
        Kubernetes(api.master).kill(handle)


def test_only_the_last_pod_of_a_driver_that_has_ended_is_kept_for_its_log(api: Api):
    api.add("sluice-main-1", "Failed", "2026-01-01T00:00:00Z")
    api.add("sluice-main-3", "Succeeded", "2026-01-03T00:00:00Z")
    api.add("sluice-main-2", "Failed", "2026-01-02T00:00:00Z")
    api.add("sluice-main-4", "Running", "2026-01-01T00:00:00Z")
    handle = Kubernetes(api.master).launch("main")
    assert {*api.pods} == {"sluice-main-3", "sluice-main-4"}
    assert api.requests[0] == f"GET {POD.rstrip('/')}?labelSelector=sluice-driver%3Dmain"
    pod = json.loads(handle)["pod"]
    assert Kubernetes(api.master).log("main", handle) == (
        f"kubectl logs -n streams {pod}; its submission: {submit.log('main')}"
    )


def test_a_bounded_job_is_a_pod_with_its_own_arguments(api: Api, submissions: Path):
    job = submit.JOB.with_name("backfill.py")
    handle = Kubernetes(api.master).submit(job, ["--from", ""], "backfill silver.tracker_readings of some days")
    words = submitted(handle, submissions)
    assert words[-3:] == [f"local://{job}", "--from", ""]
    # A name of Kubernetes has 63 characters at most, of which Spark needs 28.
    assert len(words[words.index("--name") + 1]) <= 35
    assert len(json.loads(handle)["pod"]) <= 47
