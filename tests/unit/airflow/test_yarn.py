"""Drivers on YARN: the commands for spark-submit and yarn, and their output."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from include.airflow.launchers import submit
from include.airflow.launchers.yarn import Yarn
from include.control.leases.process import Process
from include.errors import Unreachable, UsageError
from tests.support.waiting import wait_until

URL = "postgresql+psycopg://sluice@db.example/control"


@pytest.fixture(autouse=True)
def control_database(own_settings):
    """Set the URL of the control database."""

    def set_url(url: str) -> None:
        own_settings(SLUICE_CONTROL_URL=url)

    set_url(URL)
    return set_url


@pytest.fixture
def answers(tmp_path: Path, monkeypatch) -> Callable[..., Path]:
    """Install a command that appends its arguments to a file, prints text and ends with an exit code."""

    def install(name: str, output: str, code: int = 0) -> Path:
        script, calls = tmp_path / name, tmp_path / f"{name}.calls"
        script.write_text(f"#!/bin/sh\necho \"$@\" >> '{calls}'\ncat <<'END'\n{output}\nEND\nexit {code}\n")
        script.chmod(0o755)
        calls.touch()
        return calls

    monkeypatch.setattr(submit, "SPARK_SUBMIT", tmp_path / "spark-submit")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return install


def wait_for_submission(launcher: Yarn, handle: str) -> dict:
    """Wait until spark-submit ends. Returns the decoded handle."""
    value = json.loads(handle)
    wait_until(lambda: not Process(**value["submitter"]).is_alive, 10)
    return value


def conf(options: list[str]) -> dict[str, str]:
    pairs = [options[index + 1] for index, word in enumerate(options) if word == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def option(options: list[str], name: str) -> str:
    return options[options.index(name) + 1]


def test_yarn_is_told_the_tag_the_queue_and_the_settings_and_neither_waits_nor_restarts():
    options = Yarn("streams").options("sluice-main-1a2b3c4d")
    assert option(options, "--master") == "yarn"
    assert option(options, "--deploy-mode") == "cluster"
    assert option(options, "--queue") == "streams"
    properties = conf(options)
    assert properties["spark.yarn.tags"] == "sluice-main-1a2b3c4d"
    assert properties["spark.yarn.submit.waitAppCompletion"] == "false"
    assert properties["spark.yarn.maxAppAttempts"] == "1"
    assert properties["spark.yarn.appMasterEnv.SLUICE_CONTROL_URL"] == URL
    assert "--queue" not in Yarn(None).options("sluice-main-1a2b3c4d")


def test_a_password_never_stands_on_the_command_line(control_database, answers):
    calls = answers("spark-submit", "")
    for url in (URL.replace("@", ":hush@"), f"{URL}?password=hush"):
        control_database(url)
        with pytest.raises(UsageError, match=".pgpass") as error:
            Yarn(None).launch("main")
        assert "hush" not in str(error.value)
    assert calls.read_text() == ""


def test_a_setting_that_nobody_called_public_is_not_handed_on(monkeypatch):
    monkeypatch.setenv("SLUICE_SOME_HOOK", "hush")
    assert not any("hush" in word for word in Yarn(None).options("tag"))


def test_a_control_database_in_a_file_of_this_machine_is_refused(control_database):
    control_database("sqlite:////somewhere/control.db")
    with pytest.raises(UsageError, match="SLUICE_CONTROL_URL is SQLite.*set it to a PostgreSQL"):
        Yarn(None).launch("main")


def test_the_zip_holds_every_table_so_that_a_driver_elsewhere_can_list_them(tmp_path):
    options = Yarn(None).options("tag")
    code = "import include; from include import catalog; print(include.__file__, *catalog.load().tables)"
    environment = {**os.environ, "PYTHONPATH": option(options, "--py-files")}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr
    file, *tables = result.stdout.split()
    assert "include.zip" in file
    assert "gold.heart_rate_by_model" in tables


RUNNING = "Total number of applications:1\napplication_1700000000000_0007\tsluice main\thttp://h/application_1700000000000_0007"


@pytest.mark.parametrize(
    ("says", "code", "alive"),
    [(RUNNING, 0, True), ("Total number of applications:0", 0, False), ("Connection refused", 255, True)],
)
def test_an_application_lives_as_long_as_yarn_lists_its_tag(answers, says: str, code: int, alive: bool):
    answers("spark-submit", "")
    yarn = Yarn(None)
    handle = yarn.launch("main")
    tag = wait_for_submission(yarn, handle)["name"]
    calls = answers("yarn", says, code)
    assert yarn.is_alive(handle) is alive
    assert calls.read_text().startswith(f"application -list -appTags {tag} -appStates ")
    submission = f"its submission: {submit.log('main')}"
    assert yarn.log("main", handle) == f"yarn logs of the application with the tag {tag}; {submission}"


def test_an_application_is_ended_by_the_id_that_yarn_lists_for_its_tag(answers):
    answers("spark-submit", "")
    yarn = Yarn(None)
    handle = yarn.launch("main")
    wait_for_submission(yarn, handle)
    calls = answers("yarn", RUNNING)
    yarn.kill(handle)
    assert calls.read_text().splitlines()[1:] == ["application -kill application_1700000000000_0007"]
    answers("yarn", "Connection refused", 255)
    with pytest.raises(Unreachable, match="cannot be ended .Connection refused"):
        yarn.kill(handle)
