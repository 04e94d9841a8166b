"""`full_refresh` as Airflow runs it: a person reads the effect and approves it before the refresh."""

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from sqlalchemy import select

from include import catalog
from include.airflow import approvals, jobs
from include.control.jobs import store
from include.control.jobs.backfills import Backfill
from include.control.store import database
from include.control.store.schema import audits
from include.project import ranges
from tests.support.flows import only_in_full_runs
from tests.support.pipeline import random_events

GOLD = "gold.heart_rate_by_model"
SILVER, BRONZE, FILES = "silver.tracker_readings", "bronze.tracker_events", "bronze.bank_transactions"
FORM = {"reason": "names were wrong", "alone": False, "dry_run": False}
GRACE = {"id": "1", "name": "grace"}


def test_every_table_that_may_be_made_anew_has_its_dag_and_no_other(dags):
    tables = catalog.load().tables.values()
    dag_ids = {f"full_refresh.{table.name}" for table in tables if ranges.refusal(table, as_a_whole=True) is None}
    assert {name for name in dags if name.startswith("full_refresh.")} == dag_ids
    assert {f"full_refresh.{SILVER}", f"full_refresh.{FILES}"} <= dag_ids
    assert f"full_refresh.{BRONZE}" not in dag_ids
    dag = dags["full_refresh"]
    assert {f"full_refresh.{name}" for name in dag.params.get_param("table").schema["enum"]} == dag_ids
    assert [task.task_id for task in dag.topological_sort()] == ["plan", "approve", "check", "refresh"]
    assert (dag.timetable.can_be_scheduled, dag.get_task("refresh").durable) == (False, False)


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"chosen_options": ["Approve"], "responded_by_user": GRACE}, "is begun, approved by grace"),
        ({"chosen_options": ["Reject"], "responded_by_user": GRACE}, "nothing done, rejected by grace"),
        ({"chosen_options": ["Reject"], "responded_by_user": None}, "nothing done, nobody approved it"),
        (None, "nothing done, nobody approved it"),
    ],
)
@pytest.mark.usefixtures("ada_and_grace")
def test_it_begins_only_once_a_person_approved_it_and_the_audit_says_who(tmp_path, answer, result):
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")

    def arguments(**form) -> list[str]:
        return jobs.full_refresh_arguments(SILVER, FORM | form, "ada", answer, "run 1", engine)

    if result.startswith("is begun"):
        assert arguments() == ["--table", SILVER, "--full", "--run", "run 1"]
        assert arguments(alone=True) == ["--table", SILVER, "--full", "--alone", "--run", "run 1"]
    else:
        with pytest.raises(AirflowSkipException, match=result):
            arguments()
    with database.transaction(engine) as connection:
        audit = {
            (row.who, row.action, row.target, row.reason, row.result) for row in connection.execute(select(audits))
        }
    assert audit == {("ada", "full refresh", SILVER, "names were wrong", result)}


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (BRONZE, "bronze.tracker_events cannot be refreshed: Kafka forgets, and rows that topic 'tracker-events' no"),
        (SILVER, "silver.tracker_readings is not stored yet: start its flow; there is nothing to backfill"),
    ],
)
def test_what_cannot_be_done_is_refused_before_anybody_is_asked(monkeypatch, tmp_path, table, sentence):
    from include.settings import settings

    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings.cache_clear()
    try:
        with pytest.raises(AirflowFailException, match=f"^{sentence}"):
            jobs.plan_full_refresh(table, FORM)
    finally:
        monkeypatch.undo()
        settings.cache_clear()


@only_in_full_runs
def test_a_table_is_made_anew_once_a_person_approved_it_and_those_below_it_follow(pipeline, person):
    pipeline.produce(random_events(1, count=500))
    pipeline.run_once()
    rows_before, dag = pipeline.count(SILVER), "full_refresh"
    run = person.trigger(dag, {"table": SILVER, **FORM})
    person.wait_for_question(run, dag)
    assert f"{SILVER} as a whole: {rows_before:,} rows are recomputed" in person.question(run, dag)["body"]
    assert store.newest(pipeline.control, Backfill) == []
    person.answer(run, approvals.APPROVE, dag)
    person.wait(run, "refresh", "success", "failed", timeout_seconds=300, dag=dag)
    assert person.tasks(run, dag)["refresh"] == "success"
    jobs = store.newest(pipeline.control, Backfill)
    assert [(job.table, job.state) for job in jobs] == [(GOLD, "done"), (SILVER, "done")]
    assert pipeline.count(SILVER) == rows_before
    pipeline.produce(random_events(2, count=500))
    pipeline.run_once()
    pipeline.assert_nothing_lost_or_doubled()
    pipeline.assert_the_ledger_agrees()
