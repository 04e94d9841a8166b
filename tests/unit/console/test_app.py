"""The answers of the console: headers, unchanged pages, escaping, and pages from an empty control database."""

import base64
import gzip
import hashlib
import json
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from include.console import answers, app
from include.console.viewer import Viewer
from include.control.flows import incidents
from include.control.store import audit, database
from include.control.supervision.troubles import Trouble
from tests.support import console

PACKAGES = answers.HERE / "package-lock.json"
PAGES = ["/", "/graph", "/tables", "/incidents", "/audit", "/jobs", "/cost"]
ATTACK = "<script>alert(1)</script>"


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return database.connect(f"sqlite:///{tmp_path / 'control.db'}")


@pytest.fixture
def client(engine: Engine) -> TestClient:
    return TestClient(app.create(lambda: Viewer("ann", True), lambda: engine))


@pytest.mark.parametrize("path", PAGES)
def test_a_page_of_an_empty_database_says_so_and_may_run_nothing_but_our_files(client: TestClient, path: str):
    answer = client.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert " style=" not in answer.text and "<style" not in answer.text
    assert answer.text.count("<script") == answer.text.count("<script src=")


@pytest.mark.parametrize("path", PAGES)
def test_an_unchanged_page_is_not_sent_again(client: TestClient, path: str):
    tag = client.get(path).headers["etag"]
    again = client.get(path, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


def test_values_of_people_and_payloads_are_shown_and_never_run(client: TestClient, engine: Engine):
    with database.transaction(engine) as connection:
        incidents.begin(connection, "silver.orders", "BROKEN", f"a value is {ATTACK}", "SOME_CLASS")
        incidents.end(connection, "silver.orders")
        audit.record(connection, ATTACK, "restart", "silver.orders", f"because {ATTACK}", f"done {ATTACK}")
    for path in ("/incidents", "/audit"):
        text = client.get(path).text
        assert ATTACK not in text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_the_runbook_of_an_open_incident_stands_beside_it(client: TestClient, engine: Engine):
    at = console.now(engine)
    trouble = Trouble("STUCK", "silver.x", "silver.x", at, "no sign", "restart it", "cmd", "docs/runbooks/stuck.md")
    console.store(engine, console.synthetic(3, at, [trouble]))
    assert "<h1>STUCK" in client.get("/incidents").text


def test_a_control_database_that_is_away_is_named_in_one_sentence(tmp_path: Path):
    def away() -> Engine:
        return database.connect(f"sqlite:///{tmp_path / 'missing' / 'control.db'}")

    answer = TestClient(app.create(lambda: Viewer("ann", True), away)).get("/audit")
    assert answer.status_code == 503
    assert "control.db" in answer.text and "Traceback" not in answer.text


def test_a_vendored_script_is_what_its_lock_file_names():
    locked = json.loads(PACKAGES.read_text())["packages"]["node_modules/idiomorph"]
    assert locked["license"] == "0BSD"
    notice = (answers.STATIC / "idiomorph.min.js.LICENSE").read_text()
    assert "Zero-Clause BSD" in notice and locked["version"] in notice
    digest = base64.b64encode(hashlib.sha512((answers.STATIC / "idiomorph.min.js").read_bytes()).digest()).decode()
    assert f"sha512-{digest}" in notice


def test_all_scripts_together_have_at_most_30_kilobytes():
    scripts = list(answers.STATIC.glob("*.js"))
    assert scripts
    assert sum(len(gzip.compress(script.read_bytes(), 6)) for script in scripts) <= 30_000
