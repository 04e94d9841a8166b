"""Nonsense in an address, a form or a command line gets a sentence: no error of the server, and no stack trace."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from include import access
from include.access import Place
from include.airflow import controls, jobs
from include.airflow.run import Run
from include.cli import main as cli
from include.console import app
from include.console.viewer import Viewer
from include.control.commands import Action, Command
from include.control.store import audit, database
from include.errors import SluiceError
from include.settings import settings

FULL = os.environ.get("SLUICE_FAULTS") == "full"
REQUESTS, COMMANDS = (4_000, 2_000) if FULL else (150, 60)
FLOW = "silver.tracker_readings"
# No command that starts, stops, sends or waits.
CALLED = ("status", "graph", "progress", "executors", "jobs", "plan", "hold", "release-hold", "audit", "inspect")
CALLED += ("explain", "expectations", "quarantine", "grants", "ack")
OPTIONS = ("--json", "--limit", "--reason", "--hours", "--name", "--version", "--topic", "--kind", "--format", "--head")

words = st.sampled_from(
    [FLOW, "bronze.tracker_events", "main", "rewind 1", "1", "-1", "nan", "../../etc/passwd", "'--"]
)
text = st.one_of(words, st.text(max_size=40))
value = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), text, st.lists(text, max_size=2))


def examples(most: int) -> given_settings:
    suppressed = list(HealthCheck)
    return given_settings(max_examples=most, deadline=None, database=None, suppress_health_check=suppressed)


@pytest.fixture(scope="module")
def of_this_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home of its own, with one row in the audit."""
    before, home = os.environ["SLUICE_HOME"], tmp_path_factory.mktemp("home")
    os.environ["SLUICE_HOME"] = str(home)
    settings.cache_clear()
    with database.transaction(database.connect(settings().control_url)) as connection:
        audit.record(connection, "ada", "stop", FLOW, "a test", "stops after the current batch")
    yield home
    os.environ["SLUICE_HOME"] = before
    settings.cache_clear()


@pytest.fixture(scope="module")
def client(of_this_module: Path) -> TestClient:
    pages = app.create(lambda: Viewer("ann", True), lambda: database.connect(settings().control_url))
    return TestClient(pages, raise_server_exceptions=False)


PAGES = [name for one in access.CAPABILITIES if one.place is Place.PAGE for name in one.names]
names = st.sampled_from(["subject", "kind", "table", "state", "days", "span", "at", "node", "q", "sort", "driver"])


@examples(REQUESTS)
@given(st.sampled_from(PAGES), st.lists(text, max_size=2), st.dictionaries(st.one_of(names, text), text, max_size=3))
def test_a_page_answers_any_address(client: TestClient, page: str, parts: list[str], query: dict[str, str]):
    path = "/".join([page.rstrip("/"), *(quote(part, safe="") for part in parts)]) or "/"
    answer = client.get(f"{path}?{urlencode(query)}", follow_redirects=False)
    assert answer.status_code < 500, answer.text[:500]
    assert "Traceback" not in answer.text


def forms(**known: st.SearchStrategy) -> st.SearchStrategy[dict]:
    """Forms with a value for each field, mostly of those that fit."""
    return st.fixed_dictionaries({name: st.one_of(fits, fits, value) for name, fits in known.items()})


control_forms = forms(
    flow=st.sampled_from([None, FLOW]),
    driver=st.sampled_from([None, "main"]),
    job=st.sampled_from([None, "rewind 1"]),
    action=st.sampled_from([str(action) for action in Action]),
    reason=text,
    hours=st.floats(0.1, 100),
)


@examples(REQUESTS)
@given(control_forms)
def test_the_form_of_control_stream_makes_a_command_or_a_sentence(of_this_module: Path, form: dict):
    try:
        command = controls.command(form, "ada")
    except AirflowFailException as refusal:
        assert 10 < len(str(refusal)) < 500
    else:
        assert isinstance(command, Command) and command.reason.strip()


moments = st.one_of(st.none(), st.sampled_from(["2026-03-01", "2026-03-02T00:00Z", "now"]), text)
backfills = forms(**{"from": moments, "to": moments, "reason": text, "dry_run": st.booleans()})
rewinds = forms(table=st.just(FLOW), to=moments, reason=text)
refreshes = forms(reason=text, alone=st.booleans(), dry_run=st.booleans())


@examples(COMMANDS)
@given(backfills, rewinds, refreshes)
def test_the_form_of_a_job_makes_a_plan_or_a_sentence(
    of_this_module: Path, backfill: dict, rewind: dict, refresh: dict
):
    run = Run("manual", {"table": FLOW, "where": "driver", **backfill}, "ada", None, None, None)
    for plan in (
        lambda: jobs.plan_backfill(run),
        lambda: jobs.plan_rewind(rewind, "ada"),
        lambda: jobs.plan_full_refresh(FLOW, refresh),
    ):
        with pytest.raises((AirflowFailException, AirflowSkipException)) as refusal:
            plan()
        assert 10 < len(str(refusal.value)) < 1_000


@examples(COMMANDS)
@given(st.sampled_from(CALLED), st.lists(st.one_of(st.sampled_from(OPTIONS), text), max_size=4))
def test_a_command_prints_an_answer_or_a_sentence(of_this_module: Path, name: str, arguments: list[str]):
    before, sys.argv = sys.argv, ["sluice", name, *arguments]
    try:
        cli.main()
    except SluiceError as refusal:
        assert str(refusal).strip()
    finally:
        sys.argv = before
