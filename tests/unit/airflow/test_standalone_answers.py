"""The launcher for a standalone master handles its answers, and missing answers."""

import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
import pytest

from include.airflow.launchers import standalone
from include.airflow.launchers.launch import launcher_of
from include.airflow.launchers.standalone import Standalone
from include.errors import SluiceError, Unreachable, UsageError
from include.settings import settings
from tests.conftest import ROOT, free_port

MASTER = "spark://127.0.0.1:7077"


class Master:
    """A REST API that answers all requests alike, and stores the last request."""

    def __init__(self) -> None:
        self.answer: tuple[int, Any] = (200, {})
        self.request: dict[str, Any] = {}
        self.authorization: str | None = None
        master = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                master.request = {"method": self.command, "path": self.path, "body": json.loads(body or "null")}
                master.authorization = self.headers.get("Authorization")
                status, document = master.answer
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(document).encode())

            do_POST = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def master() -> Iterator[Master]:
    instance = Master()
    thread = threading.Thread(target=instance.server.serve_forever, args=(0.01,))
    thread.start()
    yield instance
    instance.server.shutdown()
    thread.join()
    instance.server.server_close()


@pytest.fixture
def handle() -> Callable[[str], str]:
    return lambda url: json.dumps({"submission": "driver-1", "rest": url})


@pytest.mark.parametrize("state", ["SUBMITTED", "RUNNING", "RELAUNCHING", "UNKNOWN"])
def test_a_driver_that_may_still_come_to_something_is_alive(master: Master, handle, state: str):
    master.answer = 200, {"action": "SubmissionStatusResponse", "success": True, "driverState": state}
    assert Standalone(MASTER, master.url).is_alive(handle(master.url))
    assert master.request["path"] == "/v1/submissions/status/driver-1"


@pytest.mark.parametrize("state", ["FINISHED", "FAILED", "KILLED", "ERROR", None])
def test_a_driver_that_ended_or_that_the_master_does_not_know_is_dead(master: Master, handle, state: str | None):
    master.answer = 200, {"action": "SubmissionStatusResponse", "success": state is not None, "driverState": state}
    assert not Standalone(MASTER, master.url).is_alive(handle(master.url))


@pytest.mark.parametrize("answer", [(500, {}), (403, "go away"), (200, ["no", "object"]), (200, {})])
def test_a_driver_is_alive_while_nobody_says_otherwise(master: Master, handle, answer: tuple[int, Any]):
    master.answer = answer
    assert Standalone(MASTER, master.url).is_alive(handle(master.url))
    assert Standalone(MASTER, master.url).is_alive(handle(f"http://127.0.0.1:{free_port()}"))


def test_the_request_hands_on_the_settings_and_tells_the_inner_spark_submit_its_master(
    master: Master, monkeypatch, tmp_path
):
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.driver.memory 9g\nspark.driver.memory  3g\nspark.driver.host 127.0.0.1\nspark.driver.cores=2\n"
        "spark.authenticate true\nspark.authenticate.secret hush\nspark.network.crypto.enabled true\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("SLUICE_SOMETHING", "a secret, perhaps")
    monkeypatch.setenv("SLUICE_FAST_PATH", "off")
    monkeypatch.setenv("HTTP_PROXY", "http://nobody.example:3128")
    master.answer = 200, {"success": True, "submissionId": "driver-7"}
    handle = Standalone(MASTER, master.url).launch("main")
    assert json.loads(handle) == {"submission": "driver-7", "rest": master.url}
    assert (master.request["method"], master.request["path"]) == ("POST", "/v1/submissions/create")
    request = master.request["body"]
    assert request["appArgs"][:2] == ["--master", MASTER]
    assert request["appArgs"][-3:] == [f"{ROOT}/jobs/stream.py", "--driver", "main"]
    assert request["environmentVariables"]["SLUICE_FAST_PATH"] == "off"
    assert "SLUICE_SOMETHING" not in request["environmentVariables"]
    assert request["environmentVariables"]["SLUICE_HOME"] == str(settings().home)
    assert request["environmentVariables"]["SLUICE_CONTROL_URL"] == settings().control_url
    assert request["environmentVariables"]["PYTHONPATH"] == str(ROOT)
    assert request["sparkProperties"] == {
        "spark.app.name": "sluice main",
        "spark.driver.memory": "3g",
        "spark.driver.cores": "2",
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.driver.extraClassPath": settings().spark_class_path,
    }


def test_each_request_bears_a_token_that_the_key_of_the_filter_signs_and_that_expires(master: Master, handle):
    key = urlsafe_b64encode(bytes(range(32))).decode()
    master.answer = 200, {"action": "SubmissionStatusResponse", "success": True, "driverState": "RUNNING"}
    cluster = Standalone(MASTER, master.url, key)
    cluster.is_alive(handle(master.url))
    scheme, token = master.authorization.split()
    claims = jwt.decode(token, bytes(range(32)), ["HS256"])
    assert scheme == "Bearer"
    assert 0 < claims["exp"] - time.time() <= standalone.TOKEN_SECONDS
    assert key not in repr(cluster)
    assert launcher_of(handle(master.url), cluster).key == key


def test_without_a_key_a_request_bears_no_token(master: Master, handle):
    Standalone(MASTER, master.url).is_alive(handle(master.url))
    assert master.authorization is None


@pytest.mark.parametrize(
    "login", ["//sluice:hush@db.example/c", "//db.example/c?password=hush&user=s", "//db/c?sslpassword=hush"]
)
def test_a_password_never_travels_over_plain_http(master: Master, own_settings, login: str):
    own_settings(SLUICE_CONTROL_URL=f"postgresql+psycopg:{login}")
    with pytest.raises(UsageError, match=".pgpass") as error:
        Standalone(MASTER, master.url).launch("main")
    assert "hush" not in str(error.value)
    assert master.request == {}


def test_a_master_that_takes_no_driver_is_named_with_its_reason(master: Master):
    master.answer = 200, {"success": False, "message": "Current state is not alive: STANDBY"}
    with pytest.raises(Unreachable, match="takes no driver .Current state is not alive: STANDBY.: start the master"):
        Standalone(MASTER, master.url).launch("main")
    unused_url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match=f"REST API at {unused_url} takes no driver .*Connection refused"):
        Standalone(MASTER, unused_url).launch("main")


def test_killing_waits_until_the_driver_is_gone_and_says_so_when_nobody_can_tell(master: Master, handle, monkeypatch):
    unused_url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(Unreachable, match="ends no driver .*Connection refused.*: see that it answers"):
        Standalone(MASTER, unused_url).kill(handle(unused_url))
    running_answer = {"action": "SubmissionStatusResponse", "success": True, "driverState": "RUNNING"}
    monkeypatch.setattr(standalone, "KILL_SECONDS", 0.5)
    original_ask = Standalone._ask
    kill_answer = {"action": "KillSubmissionResponse", "success": True}
    monkeypatch.setattr(
        Standalone,
        "_ask",
        lambda self, method, url: kill_answer if "/kill/" in url else original_ask(self, method, url),
    )
    master.answer = 200, running_answer
    with pytest.raises(SluiceError, match="driver-1 outlives the master's order to end"):
        Standalone(MASTER, master.url).kill(handle(master.url))
    master.answer = 200, running_answer | {"driverState": "KILLED"}
    Standalone(MASTER, master.url).kill(handle(master.url))
