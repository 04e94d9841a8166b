"""The DAG of an erasure shows what will be done without a name, and begins nothing that nobody has approved."""

import importlib
import runpy
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from sqlalchemy import Engine

from include import catalog
from include.airflow import erasure
from include.airflow.approvals import APPROVE
from include.catalog import Catalog
from include.control import vacuum_holds
from include.control.jobs import store
from include.control.jobs.store import StoredJob
from include.control.store import database
from include.erasure import requests
from include.erasure.requests import Request
from include.errors import UsageError
from include.settings import settings
from include.spec import Delta, Table
from tests.conftest import ROOT

SUBJECT = "user-4711"
TABLES = Catalog(
    {"silver.t": Table(name="silver.t", comment="x", source=Delta("bronze.t"), schema="user STRING", subject="user")}
)


@pytest.fixture
def tasks(tmp_path: Path, own_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    """The module of the tasks, in a project with a table that declares a subject."""
    database_url = f"sqlite:///{tmp_path / 'control.db'}"
    own_settings(SLUICE_HOME=tmp_path / "home", SLUICE_CONTROL_URL=database_url, SLUICE_ADMINS="bob")
    monkeypatch.setattr(catalog, "load", lambda: TABLES)
    yield importlib.reload(erasure)
    monkeypatch.undo()
    importlib.reload(erasure)


@pytest.fixture
def job(tasks: ModuleType) -> StoredJob:
    return requests.plan(engine(), TABLES, Request((SUBJECT,)), "eve", "asked for")


def engine() -> Engine:
    return database.connect(settings().control_url)


def answer(option: str) -> dict:
    return {"responded_by_user": {"name": "bob"}, "chosen_options": [option]}


def test_the_preview_names_the_tables_and_no_subject(tasks, job):
    vacuum_holds.register(engine(), "ann", "silver.t", 3, hours=1, requester="ann")
    number, text = tasks.plan({"number": job.number})
    assert number == job.number
    assert "Tell the reader ann, which keeps silver.t since version 3" in text
    assert "Erase 1 subjects from silver.t" in text
    assert "Asked for by eve: asked for" in text
    assert SUBJECT not in text


def test_an_unknown_erasure_fails_and_one_that_is_over_is_skipped(tasks, job):
    with pytest.raises(AirflowFailException, match="there is no erase 7"):
        tasks.plan({"number": 7})
    store.give_up(engine(), job, "no more wanted")
    with pytest.raises(AirflowSkipException, match="is over: no more wanted"):
        tasks.plan({"number": job.number})


def test_a_rejected_erasure_is_given_up_and_forgets_whom_it_named(tasks, job):
    with pytest.raises(AirflowSkipException, match="nothing done"):
        tasks.require_approved(job.number, answer("Reject"))
    assert store.get(engine(), StoredJob, job.number, requests.KIND).state == store.GIVEN_UP
    assert not requests.file_of(job.number).exists()


def test_an_approved_erasure_may_begin(tasks, job):
    with pytest.raises(UsageError, match="nobody has approved it"):
        store.require_approved(engine(), job)
    tasks.require_approved(job.number, answer(APPROVE))
    store.require_approved(engine(), job)
    assert requests.file_of(job.number).exists()


def test_the_dag_can_be_loaded_where_a_table_declares_a_subject(tasks):
    runpy.run_path(str(ROOT / "dags" / "erase.py"))
