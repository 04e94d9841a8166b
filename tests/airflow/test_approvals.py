"""A person approves. With several Airflow users, the approver is not the requester."""

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from sqlalchemy import select

from include.airflow import approvals, controls, jobs
from include.control.flows import orders
from include.control.jobs import rewinds, store
from include.control.jobs.rewinds import RestorePoint, Rewind
from include.control.store import database
from include.control.store.schema import audits
from include.errors import UsageError
from include.settings import settings

SILVER = "silver.of_a_test"
FORM = {"flow": None, "driver": None, "job": None, "reason": "a test", "hours": 24}


def answer(name: str, option: str = approvals.APPROVE) -> dict:
    return {"chosen_options": [option], "responded_by_user": {"id": "1", "name": name}}


@pytest.fixture
def users(monkeypatch, tmp_path):
    """`users("ada:admin,grace:admin")` sets the users of Airflow. The test has its own home directory."""

    def set_users(user_list: str, **variables: str) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", user_list)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        settings.cache_clear()

    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    set_users("admin:admin")
    yield set_users
    monkeypatch.undo()
    settings.cache_clear()


ONE_USER, TWO_USERS = "ada:admin", "ada:admin,grace:op"


@pytest.mark.parametrize(
    ("named", "variables", "may"),
    [
        (ONE_USER, {}, True),
        (TWO_USERS, {}, False),
        (TWO_USERS, {"SLUICE_FOUR_EYES": "off"}, True),
        (ONE_USER, {"SLUICE_FOUR_EYES": "on"}, False),
        (TWO_USERS, {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True"}, True),
        (ONE_USER, {"AIRFLOW__CORE__AUTH_MANAGER": "a.manager.of.AnotherKind"}, False),
    ],
)
def test_who_asked_approves_only_where_nobody_else_can(users, named, variables, may):
    users(named, **variables)
    assert approvals.evaluate_approval(answer("ada"), "ada").is_approved is may
    users("ada:admin,grace:op")
    assert approvals.evaluate_approval(answer("grace"), "ada") == approvals.ApprovalDecision(
        True, "grace", "approved by grace"
    )
    assert approvals.evaluate_approval(answer("ada", approvals.REJECT), "ada").message == "rejected by ada"
    assert approvals.evaluate_approval(None, "ada").message == "nobody approved it"


def test_nothing_follows_where_who_asked_has_approved_it_alone(users):
    users(TWO_USERS)
    engine = database.connect(settings().control_url)
    with pytest.raises(AirflowSkipException, match="ada asked for it, so that another user has to approve it"):
        jobs.full_refresh_arguments(SILVER, {"reason": "a", "alone": False}, "ada", answer("ada"), "run 1", engine)
    restore_points = {SILVER: RestorePoint(1, None, {}, 1.0)}
    job = rewinds.plan(engine, SILVER, "2026-03-01", restore_points, [], "ada", "a bug")
    with pytest.raises(AirflowSkipException, match="another user has to approve it"):
        jobs.require_approved_rewind(job.number, answer("ada"))
    assert store.get(engine, Rewind, job.number).state == rewinds.GIVEN_UP


def test_the_approval_of_a_rewind_stands_where_its_job_looks(users):
    users(TWO_USERS)
    engine = database.connect(settings().control_url)
    restore_points = {SILVER: RestorePoint(1, None, {}, 1.0)}
    approved_job, other_job = (
        rewinds.plan(engine, SILVER, "2026-03-01", restore_points, [], "ada", "a bug") for _ in range(2)
    )
    jobs.require_approved_rewind(approved_job.number, answer("grace"))
    store.require_approved(engine, approved_job)
    # A user marked both tasks of the other job as successful.
    with pytest.raises(UsageError, match="nobody has approved it"):
        store.require_approved(engine, other_job)


def dead_job(engine) -> str:
    restore_points = {SILVER: RestorePoint(1, None, {SILVER: 1}, 1.0)}
    job = rewinds.plan(engine, SILVER, "2026-03-01", restore_points, [], "bob", "a bug")
    rewinds.stop(engine, job)
    return f"rewind {job.number}"


def test_a_job_is_given_up_once_another_person_has_read_what_that_leaves_and_approved_it(users):
    users(TWO_USERS)
    engine = database.connect(settings().control_url)
    job = dead_job(engine)
    command = controls.command({**FORM, "job": job, "action": "give up"}, "ada")
    description = controls.describe_effect(command)
    assert (
        f"**{job}** is given up" in description
        and "- nothing was restored" in description
        and "Asked for by ada: a test" in description
    )
    state = controls.approved_state(command)
    for invalid_answer in (None, answer("ada"), answer("grace", approvals.REJECT)):
        with pytest.raises(AirflowSkipException, match=f"{job}: nothing done"):
            controls.run_command(engine, command, state, invalid_answer)
    with pytest.raises(AirflowSkipException, match="has come further"):
        controls.run_command(engine, command, ["another thing"], answer("grace"))
    assert orders.read(engine, "main", [SILVER]).of[SILVER].state == "stopped"
    assert controls.run_command(engine, command, state, answer("grace")) == [
        f"{job}: nothing was restored; {SILVER} is running again"
    ]
    assert orders.read(engine, "main", [SILVER]).of[SILVER].state == "running"
    with database.transaction(engine) as connection:
        audit_rows = connection.execute(
            select(audits).where(audits.c.action == "give up").order_by(audits.c.number)
        ).all()
    assert [(row.who, row.approver) for row in audit_rows] == [("ada", None)] * 3 + [("ada", "grace")] * 2
    assert {row.target for row in audit_rows} == {job}


@pytest.mark.parametrize(
    "form",
    [
        {"action": "give up", "flow": controls.FLOWS[0]},
        {"action": "stop", "job": "rewind 1"},
        {"action": "give up", "job": "rewind 1", "driver": "main"},
    ],
)
def test_a_job_is_named_to_give_it_up_and_for_nothing_else(users, form):
    with pytest.raises(AirflowFailException, match="give up is for a job alone"):
        controls.command({**FORM, **form}, "ada")


@pytest.mark.parametrize("job", ["rewind 7", "backfill 7", "my job"])
def test_a_job_that_there_is_not_is_refused_before_anybody_is_asked(users, job):
    command = controls.command({**FORM, "job": job, "action": "give up"}, "ada")
    with pytest.raises(AirflowFailException):
        controls.describe_effect(command)
