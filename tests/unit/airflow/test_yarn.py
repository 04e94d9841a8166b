"""Drivers on YARN: the options of spark-submit, and the answers of a ResourceManager and of its node.

tests/faults/platforms/test_yarn.py runs them on a real one.
"""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from include.airflow.launchers import submit, yarn
from include.airflow.launchers.yarn import Yarn
from include.control.leases.process import Process
from include.errors import SluiceError, Unreachable, UsageError
from include.settings import settings
from tests.conftest import ROOT, free_port
from tests.support.waiting import wait_until

URL = "postgresql+psycopg://sluice@db.example/control"
ID = "application_1700000000000_0007"


@pytest.fixture(autouse=True)
def control_database(own_settings):
    """Set the URL of the control database."""

    def set_url(url: str) -> None:
        own_settings(SLUICE_CONTROL_URL=url)

    set_url(URL)
    return set_url


@pytest.fixture
def calls(tmp_path: Path, monkeypatch) -> Path:
    """A spark-submit that appends its arguments to this file."""
    script, file = tmp_path / "spark-submit", tmp_path / "calls"
    script.write_text(f"#!/bin/sh\necho \"$@\" >> '{file}'\n")
    script.chmod(0o755)
    file.touch()
    monkeypatch.setattr(submit, "SPARK_SUBMIT", script)
    return file


class Cluster:
    """A ResourceManager that lists `applications`, and its node, where the application is in the state `on_node`.

    An application that is to be killed is KILLED.
    """

    def __init__(self) -> None:
        self.applications: list[dict[str, Any]] = []
        self.on_node: str | None = None
        self.requests: list[tuple[str, str, Any]] = []
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "null")
                cluster.requests.append((self.command, self.path, body))
                answer = cluster.answer(self.command, self.path)
                self.send_response(404 if answer is None else 200)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            do_PUT = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.address}"

    def has(self, state: str, final: str = "UNDEFINED", on_node: str | None = None) -> None:
        self.applications = [{"id": ID, "state": state, "finalStatus": final, "amHostHttpAddress": self.address}]
        self.on_node = on_node

    def answer(self, method: str, path: str) -> dict[str, Any] | None:
        if path.startswith("/ws/v1/node/"):
            return {"app": {"id": ID, "state": self.on_node}} if self.on_node else None
        if method == "PUT":
            self.has("KILLED", "KILLED")
            return {"state": "KILLING"}
        return {"apps": {"app": self.applications} if self.applications else {}}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    instance = Cluster()
    thread = threading.Thread(target=instance.server.serve_forever)
    thread.start()
    yield instance
    instance.server.shutdown()
    thread.join()
    instance.server.server_close()


@pytest.fixture
def launched(calls: Path) -> Callable[[str], str]:
    """`launched(url)` is the handle of a driver whose submission has ended."""

    def launch(url: str) -> str:
        handle = Yarn(url).launch("main")
        wait_until(lambda: not Process(**json.loads(handle)["submitter"]).is_alive, 60)
        return handle

    return launch


def conf(options: list[str]) -> dict[str, str]:
    pairs = [options[index + 1] for index, word in enumerate(options) if word == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def option(options: list[str], name: str) -> str:
    return options[options.index(name) + 1]


def test_yarn_is_told_the_tag_the_queue_and_the_settings_and_neither_waits_nor_restarts(monkeypatch):
    monkeypatch.setenv("PGPASSFILE", "/etc/sluice/pgpass")
    options = Yarn("http://m", "streams").options("sluice-main-1a2b3c4d")
    assert option(options, "--master") == "yarn"
    assert option(options, "--deploy-mode") == "cluster"
    assert option(options, "--queue") == "streams"
    properties = conf(options)
    assert properties["spark.yarn.tags"] == "sluice-main-1a2b3c4d"
    assert properties["spark.yarn.submit.waitAppCompletion"] == "false"
    assert properties["spark.yarn.maxAppAttempts"] == "1"
    assert properties["spark.yarn.appMasterEnv.SLUICE_CONTROL_URL"] == URL
    assert properties["spark.yarn.appMasterEnv.PGPASSFILE"] == "/etc/sluice/pgpass"
    assert properties["spark.driver.extraClassPath"] == settings().spark_class_path
    assert list(Path(properties["spark.yarn.jars"].removeprefix("local:")).parent.glob("spark-yarn_*.jar"))
    assert "--queue" not in Yarn("http://m").options("sluice-main-1a2b3c4d")


def test_a_bounded_job_is_submitted_with_its_arguments(calls: Path):
    handle = Yarn("http://m").submit(ROOT / "jobs" / "backfill.py", ["--table", "silver.events"], "backfill s.events")
    wait_until(lambda: not Process(**json.loads(handle)["submitter"]).is_alive, 60)
    assert calls.read_text().endswith(f"{ROOT}/jobs/backfill.py --table silver.events\n")
    tag = json.loads(handle)["tag"]
    assert tag.startswith("sluice-backfill-s-events-")
    submission = f"its submission: {submit.log('backfill-s-events')}"
    assert Yarn("http://m").log("", handle) == f"yarn logs of the application with the tag {tag}; {submission}"


def test_a_password_never_stands_on_the_command_line(control_database, calls: Path):
    for url in (URL.replace("@", ":hush@"), f"{URL}?password=hush"):
        control_database(url)
        with pytest.raises(UsageError, match=".pgpass") as error:
            Yarn("http://m").launch("main")
        assert "hush" not in str(error.value)
    assert calls.read_text() == ""


def test_a_setting_that_nobody_called_public_is_not_handed_on(monkeypatch):
    monkeypatch.setenv("SLUICE_SOME_HOOK", "hush")
    assert not any("hush" in word for word in Yarn("http://m").options("tag"))


def test_a_control_database_in_a_file_of_this_machine_is_refused(control_database):
    control_database("sqlite:////somewhere/control.db")
    with pytest.raises(UsageError, match="SLUICE_CONTROL_URL is SQLite.*set it to a PostgreSQL"):
        Yarn("http://m").launch("main")


@pytest.mark.parametrize(
    ("state", "final", "on_node", "expected"),
    [
        ("ACCEPTED", "UNDEFINED", None, None),
        ("RUNNING", "UNDEFINED", "RUNNING", None),
        ("FINISHING", "SUCCEEDED", "RUNNING", None),
        ("FINISHED", "SUCCEEDED", "APPLICATION_RESOURCES_CLEANINGUP", "FINISHED"),
        ("FINISHED", "FAILED", None, "FAILED"),
        ("FAILED", "FAILED", None, "FAILED"),
        ("KILLED", "KILLED", "FINISHING_CONTAINERS_WAIT", None),
        ("KILLED", "KILLED", "FINISHED", "KILLED"),
    ],
)
def test_an_application_has_ended_once_yarn_says_so_and_its_node_has_ended_its_processes(
    cluster: Cluster, launched, state: str, final: str, on_node: str | None, expected: str | None
):
    handle = launched(cluster.url)
    cluster.has(state, final, on_node)
    assert Yarn(cluster.url).state(handle) == expected
    assert Yarn(cluster.url).is_alive(handle) is (expected is None)
    assert f"applicationTags={json.loads(handle)['tag']}&user.name=" in cluster.requests[0][1]


def test_an_application_whose_node_is_gone_has_ended_when_yarn_says_so(cluster: Cluster, launched):
    handle = launched(cluster.url)
    cluster.has("FAILED", "FAILED")
    cluster.applications[0]["amHostHttpAddress"] = f"127.0.0.1:{free_port()}"
    assert Yarn(cluster.url).state(handle) == "FAILED"


def test_a_driver_that_an_earlier_release_launched_is_found_by_its_name(cluster: Cluster, launched):
    document = json.loads(launched(cluster.url))
    earlier_handle = json.dumps({"name": document["tag"], "submitter": document["submitter"]})
    cluster.has("RUNNING", "UNDEFINED", None)
    assert Yarn(cluster.url).is_alive(earlier_handle)
    assert f"applicationTags={document['tag']}&" in cluster.requests[0][1]


def test_a_driver_that_yarn_does_not_know_is_lost_and_lives_while_yarn_does_not_answer(cluster: Cluster, launched):
    assert Yarn(cluster.url).state(launched(cluster.url)) == "LOST"
    unused_url = f"http://127.0.0.1:{free_port()}"
    assert Yarn(unused_url).is_alive(launched(unused_url))


def test_killing_waits_until_the_node_has_ended_the_driver(cluster: Cluster, launched, monkeypatch):
    handle = launched(cluster.url)
    cluster.has("RUNNING", on_node="RUNNING")
    Yarn(cluster.url).kill(handle)
    orders = [(path.partition("?")[0], body) for method, path, body in cluster.requests if method == "PUT"]
    assert orders == [(f"/ws/v1/cluster/apps/{ID}/state", {"state": "KILLED"})]
    Yarn(cluster.url).kill(handle)
    monkeypatch.setattr(yarn, "KILL_SECONDS", 0.5)
    cluster.has("KILLED", "KILLED", on_node="FINISHING_CONTAINERS_WAIT")
    with pytest.raises(SluiceError, match=f"{ID} outlives the order to end: end it on its node"):
        Yarn(cluster.url).kill(handle)


def test_a_resource_manager_that_does_not_answer_is_named_with_the_remedy(launched):
    unused_url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match=f"ResourceManager at {unused_url} .*Connection refused.*resource-manager"):
        Yarn(unused_url).kill(launched(unused_url))
