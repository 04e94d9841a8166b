"""Approvals on the console's pages: what Airflow's database holds, and where Airflow takes the answer."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from airflow.api_fastapi.app import create_app, create_auth_manager, get_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag_version import DagVersion
from airflow.models.dagrun import DagRun
from airflow.models.hitl import HITLDetail
from airflow.models.taskinstance import TaskInstance
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from fastapi.testclient import TestClient

from include.airflow import approvals, console, waiting_approvals

RUN = "manual__2026-11-01T00:00:00+00:00"


@pytest.fixture
def waiting_rewind(dags) -> Iterator[None]:
    """A run of `rewind` whose task `approve` waits for a person."""
    with create_session() as session:
        version = DagVersion.get_latest_version("rewind", session=session)
        run = DagRun(dag_id="rewind", run_id=RUN, run_type=DagRunType.MANUAL, state=DagRunState.RUNNING)
        run.conf, run.triggering_user_name = {"table": "silver.tracker_readings", "reason": "a bug"}, "ada"
        run.triggered_by, run.run_after = DagRunTriggeredByType.REST_API, datetime.now(UTC)
        session.add(run)
        session.flush()
        task = DagSerialization.from_dict(DagSerialization.to_dict(dags["rewind"])).get_task("approve")
        instance = TaskInstance(task, run_id=RUN, dag_version_id=version.id, state=TaskInstanceState.AWAITING_INPUT)
        session.add(instance)
        session.flush()
        question = HITLDetail(ti_id=instance.id, subject="back to noon?", body="- version 7", params={})
        question.created_at = datetime.now(UTC) - timedelta(minutes=1)
        question.options, question.defaults, question.multiple = ["Approve", "Reject"], ["Reject"], False
        session.add(question)
    yield
    with create_session() as session:
        session.query(DagRun).filter_by(dag_id="rewind", run_id=RUN).delete()


def waiting(user: str, *rights: str) -> list:
    return waiting_approvals.waiting(user, lambda method, dag: method in rights)


def test_a_rewind_that_waits_is_listed_for_whoever_may_see_it(waiting_rewind, monkeypatch):
    monkeypatch.setenv("SLUICE_FOUR_EYES", "on")
    assert [found.may_answer for found in waiting("nobody", "GET", "PUT")] == [False]
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "grace:admin")
    [found] = waiting("grace", "GET", "PUT")
    assert (found.question, found.plan, found.subject, found.who) == (
        "back to noon?",
        "- version 7",
        "silver.tracker_readings",
        "ada",
    )
    assert (found.may_answer, found.is_own) == (True, False)
    assert [found.may_answer for found in waiting("grace", "GET")] == [False]
    assert waiting("grace") == []


def test_a_tab_knows_what_a_run_names_for_whoever_may_see_the_run(waiting_rewind):
    create_auth_manager()
    known = {
        role: console.User("eve", False, user=SimpleAuthManagerUser(username="eve", role=role))
        for role in ("viewer", None)
    }
    assert known["viewer"].form("rewind", RUN)["table"] == "silver.tracker_readings"
    assert known[None].form("rewind", RUN) == {}
    assert known["viewer"].form("maintain", "scheduled__2026-11-01__silver.orders") == {"table": "silver.orders"}
    # The next test has an auth manager with its own database.
    purge_cached_app()


def test_a_question_is_not_listed_while_the_process_that_asks_it_still_ends(waiting_rewind, monkeypatch):
    monkeypatch.setattr(waiting_approvals, "ASKS_SECONDS", 120)
    assert waiting("grace", "GET", "PUT") == []


def test_airflow_takes_the_answer_where_the_page_sends_it_and_the_job_reads_the_reason(waiting_rewind, monkeypatch):
    monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "grace:admin")
    with TestClient(create_app("core")) as client:
        user = SimpleAuthManagerUser(username="grace", role="admin")
        client.headers["Authorization"] = f"Bearer {get_auth_manager().generate_jwt(user)}"
        [found] = waiting("grace", "GET", "PUT")
        body = {"chosen_options": [approvals.APPROVE], "params_input": {"reason": "seen"}}
        answers = [client.patch(f"/api/v2/dags/{found.place}", json=body) for _ in range(2)]
    purge_cached_app()
    assert [answer.status_code for answer in answers] == [200, 409]
    answered = answers[0].json()
    decision = approvals.evaluate_approval({**answered, "responded_by_user": answered["responded_by"]}, "ada")
    assert (decision.is_approved, decision.message) == (True, "approved by grace: seen")
    assert waiting("grace", "GET", "PUT") == []
