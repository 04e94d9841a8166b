"""What `include.access` says of each role holds in Airflow, the console and approvals; it names everything."""

from pathlib import Path

import pytest
from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from docs import reference_pages
from include import access
from include.access import CAPABILITIES, OF_AIRFLOW, Place, Role
from include.airflow import approvals, console, waiting_approvals
from include.control.commands import DESTRUCTIVE, Action
from include.settings import settings
from tests.conftest import ROOT


def names(place: Place) -> list[str]:
    return sorted(name for one in CAPABILITIES if one.place is place for name in one.names)


@pytest.fixture
def manager(home: Path):
    yield create_auth_manager()
    purge_cached_app()


def test_every_dag_action_and_page_is_named_once(manager):
    dags = {file.stem for file in (ROOT / "dags").glob("*.py")} - {"control"}
    assert names(Place.RUN) == sorted([*dags, "control.stream"])
    assert names(Place.ACTION) == sorted(Action)
    routes = {f"/{route.path.split('/')[1]}" for route in console.create().routes}
    assert set(names(Place.PAGE)) == {route for route in routes if "{" not in route}


def test_what_waits_for_approval_is_what_the_table_says():
    assert {str(action) for action in DESTRUCTIVE} == access.APPROVED_ACTIONS
    waiting = {file.stem for file in (ROOT / "dags").glob("*.py") if "preview=" in file.read_text()}
    [approved] = [set(one.names) for one in CAPABILITIES if one.place is Place.RUN and one.needs_approval]
    assert approved == waiting


@pytest.mark.parametrize(("role", "ours"), OF_AIRFLOW.items())
def test_airflow_lets_each_role_see_and_trigger_what_the_table_says(manager, role: str, ours: Role):
    user = SimpleAuthManagerUser(username="eve", role=role)
    for dag in names(Place.RUN):
        details = DagDetails(id=dag)
        assert manager.is_authorized_dag(method="GET", details=details, user=user)
        for method, entity in (("POST", DagAccessEntity.RUN), ("PUT", DagAccessEntity.TASK_INSTANCE), ("PUT", None)):
            may = manager.is_authorized_dag(method=method, access_entity=entity, details=details, user=user)
            assert may is ours.includes(access.least(Place.RUN, dag)), (dag, method, entity)


def test_airflow_lets_nobody_without_a_role_see_anything(manager):
    nobody = SimpleAuthManagerUser(username="eve", role=None)
    assert not any(
        manager.is_authorized_dag(method="GET", details=DagDetails(id=dag), user=nobody) for dag in names(Place.RUN)
    )


@pytest.mark.parametrize(("role", "ours"), OF_AIRFLOW.items())
def test_each_role_sees_the_pages_and_buttons_that_the_table_says(manager, monkeypatch, role: str, ours: Role):
    # There is no database of Airflow here.
    monkeypatch.setattr(waiting_approvals, "waiting", lambda _user, _may: [])
    client = TestClient(console.create())
    client.app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="eve", role=role)
    for page in names(Place.PAGE):
        path = f"{page}/any" if page in ("/flow", "/table", "/dag", "/static") else page
        may = ours.includes(access.least(Place.PAGE, page))
        assert (client.get(path).status_code in (200, 404)) is may, page
    has_buttons = "<dialog" in client.get("/audit").text
    assert has_buttons is ours.includes(access.least(Place.RUN, "control.stream"))


def test_whoever_has_no_role_sees_no_page(manager):
    client = TestClient(console.create())
    client.app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="eve", role=None)
    for page in [*names(Place.PAGE), "/no/such/page"]:
        path = f"{page}/any" if page in ("/flow", "/table", "/dag", "/static") else page
        assert client.get(path).status_code == 403, page


@pytest.fixture
def set_up(monkeypatch: pytest.MonkeyPatch, home: Path):
    def change(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        settings.cache_clear()

    yield change
    monkeypatch.undo()
    settings.cache_clear()


def answer(name: str) -> dict:
    return {"chosen_options": [approvals.APPROVE], "responded_by_user": {"id": "1", "name": name}}


@pytest.mark.parametrize(("role", "ours"), OF_AIRFLOW.items())
def test_each_role_approves_or_does_not_as_the_table_says_and_has_buttons_for_it(
    manager, set_up, role: str, ours: Role
):
    set_up(AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS=f"ada:admin,eve:{role}")
    has_button = console.viewer(SimpleAuthManagerUser(username="eve", role=role)).may_approve
    assert has_button is ours.includes(access.least(Place.APPROVAL, "approve"))
    decision = approvals.evaluate_approval(answer("eve"), "ada")
    assert decision.is_approved is ours.includes(access.least(Place.APPROVAL, "approve"))
    if not decision.is_approved:
        assert decision.message == f"eve has the role {role} in Airflow, so that an admin has to approve it"


def test_a_user_who_was_taken_out_approves_nothing(set_up):
    set_up(AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS="ada:admin,grace:admin")
    assert not approvals.evaluate_approval(answer("eve"), "ada").is_approved


def test_with_another_auth_manager_the_setting_names_who_approves(set_up):
    set_up(AIRFLOW__CORE__AUTH_MANAGER="a.manager.of.AnotherKind")
    assert approvals.evaluate_approval(answer("eve"), "ada").is_approved
    set_up(SLUICE_ADMINS="ada, grace")
    assert approvals.evaluate_approval(answer("grace"), "ada").is_approved
    refused = approvals.evaluate_approval(answer("eve"), "ada")
    assert refused.message == "eve is not one of SLUICE_ADMINS, so that an admin has to approve it"


def test_the_documentation_has_the_table_as_it_is():
    rows = [line.split(" | ") for line in reference_pages.access_page().splitlines() if line.startswith("| ")]
    written = [(row[0].removeprefix("| "), row[1].replace("`", "").split(", "), row[2:5]) for row in rows[1:]]
    for (place, listed, rights), one in zip(written, CAPABILITIES, strict=True):
        assert (place, listed) == (str(one.place), list(one.names))
        assert [bool(right.strip()) for right in rights] == [role.includes(one.least) for role in Role]
