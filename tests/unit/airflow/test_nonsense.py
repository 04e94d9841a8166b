"""Nonsense in an address, a form or a command line gets a sentence: no error of the server, and no stack trace.

What is refused has changed nothing in the control database but the audit.
"""

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given
from hypothesis import settings as given_settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event, select

from include import access
from include.access import Place
from include.airflow import controls, erasure, jobs, maintenance
from include.airflow.run import Run
from include.cli import main as cli
from include.cli.actions import NotDone
from include.console import app
from include.console.viewer import Viewer
from include.control.commands import Action, Command
from include.control.store import audit, database
from include.control.store.job_schema import metadata
from include.control.store.schema import audits
from include.errors import SluiceError
from include.settings import settings

FULL = os.environ.get("SLUICE_FAULTS") == "full"
# 10,000 in all.
PAGES, METHODS, CONTROLS, JOBS, PARSED, CALLS = (3_500, 500, 2_000, 1_000, 1_000, 2_000) if FULL else (150, 25) * 3
FLOW = "silver.tracker_readings"
# They start, stop or replace processes, write files of a checkout, or wait for Kafka: only their options are read.
ONLY_READ = {"up", "down", "check", "preview", "new-table", "remove-examples", "report", "metrics", "mirror"}
CALLED = sorted({*cli.NAMES, *cli.KINDS} - ONLY_READ)
OPTIONS = ("--json", "--limit", "--reason", "--hours", "--name", "--version", "--topic", "--kind", "--format", "--head")
OPTIONS += ("--to",)
OPTIONS += ("--driver", "--wait-seconds", "--accept", "--show-personal", "--subject", "--dry-run", "--apply", "--flow")

words = st.sampled_from(
    [FLOW, "bronze.tracker_events", "main", "rewind 1", "1", "-1", "nan", "../../etc/passwd", "'--", "-", "verify"]
)
text = st.one_of(words, st.text(max_size=40))
value = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), text, st.lists(text, max_size=2))


def examples(most: int) -> given_settings:
    suppressed = list(HealthCheck)
    return given_settings(max_examples=most, deadline=None, database=None, suppress_health_check=suppressed)


def engine() -> Engine:
    return database.connect(settings().control_url)


class Stored:
    """All rows of the control database but those of the audit, which a refusal may add to."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Any]] = {}
        self._is_read = False
        event.listen(engine(), "before_cursor_execute", self._note)

    def _note(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        # To read all rows before and after each request would take most of the time.
        self._is_read = self._is_read and statement.split(None, 1)[0] in ("SELECT", "PRAGMA", "BEGIN")

    def rows(self) -> dict[str, list[Any]]:
        if not self._is_read:
            with database.reading(engine()) as connection:
                tables = [table for table in metadata.sorted_tables if table is not audits]
                self._rows = {table.name: list(connection.execute(select(table)).all()) for table in tables}
            self._is_read = True
        return self._rows


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """Of a home of this module, with one row in the audit."""
    before, home = os.environ["SLUICE_HOME"], tmp_path_factory.mktemp("home")
    os.environ["SLUICE_HOME"] = str(home)
    settings.cache_clear()
    with database.transaction(database.connect(settings().control_url)) as connection:
        audit.record(connection, "ada", "stop", FLOW, "a test", "stops after the current batch")
    yield Stored()
    os.environ["SLUICE_HOME"] = before
    settings.cache_clear()


@contextmanager
def changes_nothing_if_refused(stored: Stored, *refusals: type[Exception]) -> Iterator[None]:
    before = stored.rows()
    try:
        yield
    except refusals as refusal:
        assert 3 < len(str(refusal).strip()) < 2_000
        if not isinstance(refusal, NotDone):
            assert stored.rows() == before


# What the form of a run names, also of a DAG that is not of Sluice.
OF_RUN: dict[str, Any] = {}


class Reader(Viewer):
    def form(self, _dag: str, _run: str) -> Mapping[str, Any]:
        return OF_RUN


@pytest.fixture(scope="module")
def client(stored: Stored) -> TestClient:
    return TestClient(app.create(lambda: Reader("ann", True, True, True), engine), raise_server_exceptions=False)


def routes() -> list[str]:
    """Each route of the console, with `{}` for what an address fills in."""
    paths = {route.path for route in app.create(lambda: None, lambda: None).routes}
    assert {f"/{path.split('/')[1]}" for path in paths} >= {
        name for one in access.CAPABILITIES if one.place is Place.PAGE for name in one.names
    }
    return sorted(paths)


names = st.sampled_from(["subject", "kind", "table", "state", "days", "span", "at", "node", "q", "sort", "driver"])
queries = st.dictionaries(st.one_of(names, st.just("version"), text), text, max_size=3)
headers = st.dictionaries(
    st.sampled_from(["If-None-Match", "Accept", "Accept-Encoding", "Cookie", "Host"]),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30),
)


parts = st.lists(st.one_of(text, st.binary(max_size=8)), max_size=3)
run_forms = st.dictionaries(st.sampled_from(["table", "flow", "driver"]), value)


def address(route: str, given_parts: list[str | bytes], query: dict[str, str]) -> str:
    filled = iter([quote(part, safe="") or "x" for part in [*given_parts, "x", "x"]])
    path = "/".join(next(filled) if step.startswith("{") else step for step in route.split("/"))
    return f"{path}?{urlencode(query)}"


@examples(PAGES)
@given(st.sampled_from(routes()), parts, queries, headers, run_forms)
def test_a_page_answers_any_address(
    client: TestClient, stored: Stored, route: str, given_parts: list[str | bytes], query: dict, sent: dict, form: dict
):
    OF_RUN.clear()
    OF_RUN.update(form)
    before = stored.rows()
    answer = client.get(address(route, given_parts, query), headers=sent, follow_redirects=False)
    assert answer.status_code < 500, answer.text[:500]
    assert "Traceback" not in answer.text
    assert stored.rows() == before


@examples(METHODS)
@given(st.sampled_from(["POST", "PUT", "PATCH", "DELETE"]), st.sampled_from(routes()), queries, value)
def test_no_page_takes_what_changes_something(client: TestClient, method: str, route: str, query: dict, body: object):
    assert client.request(method, address(route, [], query), content=repr(body)).status_code == 405


def forms(**known: st.SearchStrategy) -> st.SearchStrategy[dict]:
    """Forms with a value for each field, mostly of those that fit."""
    return st.fixed_dictionaries({name: st.one_of(fits, fits, value) for name, fits in known.items()})


control_forms = forms(
    flow=st.sampled_from([None, FLOW]),
    driver=st.sampled_from([None, "main"]),
    job=st.sampled_from([None, "rewind 1"]),
    action=st.sampled_from([str(action) for action in Action]),
    to=st.one_of(st.none(), text),
    reason=text,
    hours=st.floats(0.1, 100),
)


@examples(CONTROLS)
@given(control_forms)
def test_the_form_of_control_stream_makes_a_command_or_a_sentence(stored: Stored, form: dict):
    try:
        command = controls.command(form, "ada")
    except AirflowFailException as refusal:
        assert 10 < len(str(refusal)) < 500
        return
    assert isinstance(command, Command) and command.reason.strip()
    if command.action in controls.DESTRUCTIVE:
        # Nobody has approved it.
        with changes_nothing_if_refused(stored, AirflowFailException, AirflowSkipException):
            controls.describe_effect(command)
            controls.run_command(engine(), command, controls.approved_state(command), None)
            pytest.fail("it was carried out")


moments = st.one_of(st.none(), st.sampled_from(["2026-03-01", "2026-03-02T00:00Z", "now"]), text)
tables = st.sampled_from([FLOW, "gold.heart_rate_by_day"])
Planned = Callable[[dict[str, Any]], object]


def run(form: dict[str, Any]) -> Run:
    return Run("manual", form, "ada", None, None, None)


# Of each DAG but `control.stream`: its form, and what its first task does with it.
FORMS: dict[str, tuple[st.SearchStrategy[dict], Planned]] = {
    "backfill": (
        forms(**{"from": moments, "to": moments}, table=tables, reason=text, dry_run=st.booleans(), where=text),
        lambda form: jobs.plan_backfill(run(form)),
    ),
    "erase": (forms(number=st.integers()), erasure.plan),
    "full_refresh": (
        forms(table=tables, reason=text, alone=st.booleans(), dry_run=st.booleans()),
        lambda form: jobs.plan_full_refresh(run(form).table, form),
    ),
    "maintain": (
        forms(table=tables, reason=text, where=st.sampled_from(["driver", "job"]), dry_run=st.booleans()),
        lambda form: maintenance.plan(run(form).table, "ada", form),
    ),
    "refresh": (forms(table=tables, reason=text), lambda form: jobs.begin_refresh(run(form))),
    "replay": (forms(table=tables, rule=text, reason=text), lambda form: jobs.plan_replay(form, "ada")),
    "rewind": (forms(table=tables, to=moments, reason=text), lambda form: jobs.plan_rewind(form, "ada")),
}


def test_each_dag_with_a_form_gets_nonsense():
    dags = {name for one in access.CAPABILITIES if one.place is Place.RUN for name in one.names}
    assert FORMS.keys() == dags - {"control.stream", "supervise"}


@examples(JOBS)
@given(st.fixed_dictionaries({name: form for name, (form, _) in FORMS.items()}))
def test_the_form_of_a_job_makes_a_plan_or_a_sentence(stored: Stored, filled: dict[str, dict]):
    for name, form in filled.items():
        # SluiceError: such as of a table that nobody has declared.
        with changes_nothing_if_refused(stored, AirflowFailException, AirflowSkipException, SluiceError):
            FORMS[name][1](form)


arguments = st.lists(st.one_of(st.sampled_from(OPTIONS), text), max_size=5)


@examples(PARSED)
@given(st.sampled_from(sorted(ONLY_READ)), arguments)
def test_options_are_read_or_refused_in_a_sentence(stored: Stored, name: str, given_arguments: list[str]):
    function = cli.function_of(name)

    @wraps(function)
    def nothing(*_: object, **__: object) -> None:
        pass

    with changes_nothing_if_refused(stored, SluiceError):
        cli.run(nothing, f"sluice {name}", given_arguments)


@examples(CALLS)
@given(st.sampled_from(CALLED), arguments)
def test_a_command_prints_an_answer_or_a_sentence(stored: Stored, name: str, given_arguments: list[str]):
    before, sys.argv, sys.stdin = (sys.argv, sys.stdin), ["sluice", name, *given_arguments], io.StringIO("x\n")
    try:
        with changes_nothing_if_refused(stored, SluiceError):
            cli.main()
    finally:
        sys.argv, sys.stdin = before
