"""Who may see the console, and what the registration of the plugin costs the other parts of Airflow."""

import subprocess
import sys
from collections.abc import Callable

import pytest
from airflow.api_fastapi.app import create_auth_manager, purge_cached_app
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from include.airflow import console
from tests.conftest import ROOT

ANY = {"name": "any", "path": "any", "dag": "any", "run": "any"}


@pytest.fixture
def client(home) -> TestClient:
    create_auth_manager()
    yield TestClient(console.create())
    purge_cached_app()


@pytest.fixture
def sign_in(client: TestClient) -> Callable[[str | None], None]:
    def as_role(role: str | None) -> None:
        client.app.dependency_overrides[get_user] = lambda: SimpleAuthManagerUser(username="eve", role=role)

    return as_role


def paths(client: TestClient) -> list[str]:
    routes = client.app.routes
    assert all(isinstance(route, APIRoute) for route in routes), "a mount is outside the guard"
    return [route.path.replace(":path", "").format(**ANY) for route in routes]


def test_a_stranger_is_refused_on_every_route_and_on_paths_without_one(client: TestClient):
    asked = [*paths(client), "/openapi.json", "/docs", "/redoc", "/static/console.js", "/../pyproject.toml"]
    assert {path: client.get(path).status_code for path in asked} == dict.fromkeys(asked, 401)


def test_a_user_without_the_right_to_see_the_supervisor_is_refused_on_every_route(client: TestClient, sign_in):
    sign_in(None)
    asked = [*paths(client), "/openapi.json", "/docs"]
    assert {path: client.get(path).status_code for path in asked} == dict.fromkeys(asked, 403)


def test_no_route_changes_anything(client: TestClient, sign_in):
    assert {method for route in client.app.routes for method in route.methods} <= {"GET", "HEAD"}
    sign_in("admin")
    assert client.post("/").status_code == 405


def test_the_dialog_of_the_buttons_is_there_for_whoever_may_trigger(client: TestClient, sign_in):
    sign_in("viewer")
    assert "<dialog" not in client.get("/audit").text
    sign_in("user")
    assert "<dialog" in client.get("/audit").text


def test_the_plugin_does_not_load_the_console_until_the_api_server_asks_for_its_apps():
    code = """
import sys
sys.path.insert(0, "plugins")
import sluice
plugin = sluice.Sluice()
assert not [name for name in sys.modules if name.startswith("include.console")], "loaded early"
[registered] = plugin.fastapi_apps
assert registered["url_prefix"] == "/sluice"
assert "include.console.app" in sys.modules
routes = [route for route in registered["app"].routes if route.path != "/{path:path}"]
for view in plugin.external_views:
    path = "/" + view["href"].removeprefix("sluice/").format(DAG_ID="maintain", RUN_ID="a run")
    assert any(route.path_regex.match(path) for route in routes), path
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
