"""Who may approve: a person, and where Airflow has several users another one than who asked."""

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from sqlalchemy import select

from include.control import orders
from include.control.jobs import approvals, rewinds
from include.control.jobs.rewinds import RestorePoint
from include.control.store import database
from include.control.store.schema import audits
from include.errors import UsageError
from include.orchestration import full_refresh, oncall, rewind, tasks
from include.settings import settings

SILVER = "silver.of_a_test"
FORM = {"flow": None, "driver": None, "job": None, "reason": "a test", "hours": 24}


def answer(name: str, option: str = tasks.APPROVE) -> dict:
    return {"chosen_options": [option], "responded_by_user": {"id": "1", "name": name}}


@pytest.fixture
def users(monkeypatch, tmp_path):
    """`users("ada:admin,grace:admin")` are those that Airflow has; a home of the test's own."""

    def have(named: str, **variables: str) -> None:
        monkeypatch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", named)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        settings.cache_clear()

    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    have("admin:admin")
    yield have
    monkeypatch.undo()
    settings.cache_clear()


ONE, TWO = "ada:admin", "ada:admin,grace:op"


@pytest.mark.parametrize(
    ("named", "variables", "may"),
    [
        (ONE, {}, True),
        (TWO, {}, False),
        (TWO, {"SLUICE_FOUR_EYES": "off"}, True),
        (ONE, {"SLUICE_FOUR_EYES": "on"}, False),
        (TWO, {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True"}, True),
        (ONE, {"AIRFLOW__CORE__AUTH_MANAGER": "a.manager.of.AnotherKind"}, False),
    ],
)
def test_who_asked_approves_only_where_nobody_else_can(users, named, variables, may):
    users(named, **variables)
    assert tasks.evaluate_approval(answer("ada"), "ada").is_approved is may
    assert tasks.evaluate_approval(answer("grace"), "ada") == tasks.ApprovalDecision(True, "grace", "approved by grace")
    assert tasks.evaluate_approval(answer("ada", tasks.REJECT), "ada").said == "rejected by ada"
    assert tasks.evaluate_approval(None, "ada").said == "nobody approved it"


def test_nothing_follows_where_who_asked_has_approved_it_alone(users):
    users(TWO)
    engine = database.connect(settings().control_url)
    with pytest.raises(AirflowSkipException, match="ada asked for it, so that another user has to approve it"):
        full_refresh.arguments(SILVER, {"reason": "a", "alone": False}, "ada", answer("ada"), "run 1", engine)
    cut = {SILVER: RestorePoint(1, None, {}, 1.0)}
    asked = rewinds.plan(engine, SILVER, "2026-03-01", cut, [], "ada", "a bug")
    with pytest.raises(AirflowSkipException, match="another user has to approve it"):
        rewind.require_approval(asked.number, answer("ada"))
    assert rewinds.get(engine, asked.number).phase == rewinds.GIVEN_UP


def test_the_approval_of_a_rewind_stands_where_its_job_looks(users):
    engine = database.connect(settings().control_url)
    cut = {SILVER: RestorePoint(1, None, {}, 1.0)}
    one, other = (rewinds.plan(engine, SILVER, "2026-03-01", cut, [], "ada", "a bug") for _ in range(2))
    rewind.require_approval(one.number, answer("grace"))
    approvals.require(engine, one)
    # Somebody has marked both tasks of the other as a success.
    with pytest.raises(UsageError, match="nobody has approved it"):
        approvals.require(engine, other)


def died(engine) -> str:
    cut = {SILVER: RestorePoint(1, None, {SILVER: 1}, 1.0)}
    one = rewinds.plan(engine, SILVER, "2026-03-01", cut, [], "bob", "a bug")
    rewinds.stop(engine, one)
    return f"rewind {one.number}"


def test_a_job_is_given_up_once_another_person_has_read_what_that_leaves_and_approved_it(users):
    users(TWO)
    engine = database.connect(settings().control_url)
    job = died(engine)
    asked = oncall.command({**FORM, "job": job, "action": "give up"}, "ada")
    said = oncall.describe_effect(asked)
    assert f"**{job}** is given up" in said and "- nothing was put back" in said and "Asked for by ada: a test" in said
    state = oncall.approved_state(asked)
    for refused in (None, answer("ada"), answer("grace", tasks.REJECT)):
        with pytest.raises(AirflowSkipException, match=f"{job}: nothing done"):
            oncall.run_command(engine, asked, state, refused)
    with pytest.raises(AirflowSkipException, match="has come further"):
        oncall.run_command(engine, asked, ["another thing"], answer("grace"))
    assert orders.read(engine, "main", [SILVER]).of[SILVER].state == "stopped"
    assert oncall.run_command(engine, asked, state, answer("grace")) == [
        f"{job}: nothing was put back; {SILVER} is running again"
    ]
    assert orders.read(engine, "main", [SILVER]).of[SILVER].state == "running"
    with database.transaction(engine) as connection:
        lines = connection.execute(select(audits).where(audits.c.action == "give up").order_by(audits.c.number)).all()
    assert [line.who for line in lines] == ["ada"] * 4 + ["ada, approved by grace"]
    assert {line.target for line in lines} == {job}


@pytest.mark.parametrize(
    "form",
    [
        {"action": "give up", "flow": SILVER},
        {"action": "stop", "job": "rewind 1"},
        {"action": "give up", "job": "rewind 1", "driver": "main"},
    ],
)
def test_a_job_is_named_to_give_it_up_and_for_nothing_else(users, form):
    with pytest.raises(AirflowFailException, match="give up is for a job alone"):
        oncall.command({**FORM, **form}, "ada")


@pytest.mark.parametrize("job", ["rewind 7", "backfill 7", "my job"])
def test_a_job_that_there_is_not_is_refused_before_anybody_is_asked(users, job):
    asked = oncall.command({**FORM, "job": job, "action": "give up"}, "ada")
    with pytest.raises(AirflowFailException):
        oncall.describe_effect(asked)
