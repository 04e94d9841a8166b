"""A whole platform, with a secret of each kind in its variables, files and payloads, leaves none of them anywhere."""

import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
import sqlalchemy

from include.examples import PRODUCER
from include.local.up import BROKER
from tests.conftest import ROOT
from tests.support.flows import only_in_full_runs
from tests.support.live import Live, running_platform
from tests.support.planted import Planted
from tests.support.secrets_search import environments_with, files_with, holds, processes_with, rows_with

COMMANDS = ("status", "jobs", "graph", "status --troubles --json", "audit export", "quarantine silver.page_views")
COMMANDS += ("metrics", "lineage", "inspect bronze.page_views", "processes", "grants")
PAGES = ("", "incidents", "audit", "jobs", "tables", "graph", "cost", "table/bronze.page_views")
PAGES += ("flow/bronze.page_views",)


class Receiver:
    """A receiver of messages and lineage. bodies: what it got, without addresses and headers, which have the tokens."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    new = Receiver()
    yield new
    new.server.shutdown()
    new.server.server_close()


@only_in_full_runs
def test_no_log_table_page_message_or_process_has_a_planted_secret(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    home, planted = tmp_path / "home", Planted(tmp_path / "secrets", receiver.url)
    for name, value in planted.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OPENLINEAGE_URL", receiver.url)
    files = {name: value for name, value in planted.variables.items() if name.startswith("SLUICE_")}
    with running_platform(home, OPENLINEAGE_URL=receiver.url, SLUICE_LEASE_SECONDS="15", **files) as live:
        live.wait_for_driver()
        live.wait_for_supervisor()
        send_message(live)
        assert any(b"somebody tries the connection" in body for body in receiver.bodies)
        command_lines = processes_with(planted.tokens)
        environments = environments_with(planted.tokens, pids_without_need(live))
        found_rows = rows_with(planted.tokens, live.control) | rows_with(planted.tokens, airflow_database(home))
        printed = {words: sluice(live, words) for words in COMMANDS}
        answers = {page: answer(live, page) for page in (*(f"/sluice/{page}" for page in PAGES), "/api/v2/connections")}
        live.down()
    assert any(b'"eventType"' in body for body in receiver.bodies), "lineage was told"
    assert b"sluice_flow" in printed["metrics"]
    assert command_lines == []
    assert environments == []
    assert found_rows == set()
    assert [words for words, text in printed.items() if holds(text, planted.tokens)] == []
    assert [page for page, text in answers.items() if holds(text, planted.tokens)] == []
    assert [body for body in receiver.bodies if holds(body, planted.tokens)] == []
    assert files_with(planted.tokens, home) == set()
    # The search would have found them.
    assert len(files_with(planted.tokens, planted.directory)) == 3
    assert [words for words, text in printed.items() if not text] == []
    assert [page for page, text in answers.items() if page.startswith("/sluice") and b"<html" not in text] == []


def send_message(live: Live) -> None:
    command = [sys.executable, "-m", "include.airflow.supervisor.notify", "--trial"]
    result = subprocess.run(command, cwd=ROOT, env=live.environment, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr


def pids_without_need(live: Live) -> list[int]:
    """The processes that need no secret of the environment, and what they started."""
    leaders = [process for name in (BROKER, PRODUCER) if (process := live.platform.find(name))]
    assert len(leaders) == 2
    found = [psutil.Process(leader.pid) for leader in leaders]
    return [process.pid for leader in found for process in (leader, *leader.children(recursive=True))]


def airflow_database(home: Path) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(f"sqlite:///{home / 'airflow' / 'airflow.db'}")


def sluice(live: Live, words: str) -> bytes:
    command = [sys.executable, "-m", "include.cli", *words.split()]
    result = subprocess.run(command, cwd=ROOT, env=live.environment, capture_output=True, timeout=300)
    return result.stdout + result.stderr


def answer(live: Live, page: str) -> bytes:
    request = urllib.request.Request(
        f"{live.airflow.url}{page}", headers={"Authorization": f"Bearer {live.airflow.token()}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return bytes(response.read())
    except urllib.error.HTTPError as error:
        return error.read()
