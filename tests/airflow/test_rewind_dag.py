"""`rewind` plans, waits for the approval of a person, and runs one spark-submit."""

from datetime import UTC, datetime

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from include import catalog
from include.airflow import approvals, jobs
from include.control.jobs import rewinds, store
from include.control.jobs.rewinds import RestorePoint, Rewind
from include.settings import settings
from tests.support import lake
from tests.support.flows import only_in_full_runs
from tests.support.pipeline import random_events

SILVER, GOLD = "silver.tracker_readings", "gold.heart_rate_by_model"
DAG = "rewind"
GRACE = {"responded_by_user": {"id": "1", "name": "grace"}}


@pytest.fixture
def home(monkeypatch, tmp_path):
    """An empty home directory for one test. Returns its control database."""
    from include.control.store import database

    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings.cache_clear()
    yield database.connect(settings().control_url)
    monkeypatch.undo()
    settings.cache_clear()


def plan_rewind(**form) -> tuple[int, str]:
    return jobs.plan_rewind({"table": SILVER, "to": "2026-03-01", "reason": "a bug"} | form, "ada")


def test_it_asks_a_person_before_spark_starts(dags):
    dag = dags[DAG]
    assert [task.task_id for task in dag.topological_sort()] == ["plan", "approve", "check", "rewind"]
    assert dag.get_task("rewind").durable is False
    views = catalog.load().views
    assert set(dag.params.get_param("table").schema["enum"]) == set(catalog.load().tables) - set(views)


@pytest.mark.parametrize(
    ("form", "sentence"),
    [
        ({}, ".*tracker_readings holds no Delta log: start the flow that writes the table first"),
        ({"to": "last Tuesday"}, "--to is 'last Tuesday', no moment"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(home, form, sentence):
    with pytest.raises(AirflowFailException, match=f"^{sentence}"):
        plan_rewind(**form)


def test_where_nothing_has_come_since_nobody_is_asked(home):
    lake.rows(SILVER, 1, 10)
    with pytest.raises(AirflowSkipException, match="nothing is to be undone"):
        plan_rewind()


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "nobody approved it"),
        ({"chosen_options": [approvals.REJECT], "responded_by_user": None}, "nobody approved it"),
        ({"chosen_options": [approvals.REJECT], **GRACE}, "rejected by grace"),
    ],
)
def test_without_an_approval_nothing_is_done_and_that_is_written_down(home, answer, why):
    job = rewinds.plan(home, SILVER, "2026-03-01", {SILVER: RestorePoint(1, None, {}, 1.0)}, [], "ada", "a bug")
    with pytest.raises(AirflowSkipException, match=why):
        jobs.require_approved_rewind(job.number, answer)
    stored_job = store.get(home, Rewind, job.number)
    assert (stored_job.state, stored_job.message) == ("given up", why)


@only_in_full_runs
def test_a_table_is_put_back_once_a_person_approved_it_and_made_again(pipeline, person):
    pipeline.produce(random_events(1, count=500))
    pipeline.run_once()
    target_time = datetime.now(UTC).isoformat()
    pipeline.produce(random_events(2, count=500))
    pipeline.run_once()
    rows_before = pipeline.count(SILVER)
    run = person.trigger(DAG, {"table": SILVER, "to": target_time, "reason": "a test"})
    person.wait_for_question(run, DAG)
    assert f"{SILVER} goes back to version" in person.question(run, DAG)["body"]
    assert pipeline.count(SILVER) == rows_before
    person.answer(run, approvals.APPROVE, DAG)
    person.wait(run, "rewind", "success", "failed", timeout_seconds=300, dag=DAG)
    assert person.tasks(run, DAG)["rewind"] == "success"
    assert 0 < pipeline.count(SILVER) < rows_before
    assert [job.state for job in store.newest(pipeline.control, Rewind)] == ["done"]
    pipeline.run_once()
    pipeline.assert_nothing_lost_or_doubled()
    pipeline.assert_the_ledger_agrees()
