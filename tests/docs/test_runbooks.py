"""Each alarm has a page in docs/runbooks, and every command of the pages works."""

import ast
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from include import catalog
from include.cli.actions import NotDone
from include.cli.main import COMMANDS, main
from include.cli.overview import ON_CALL
from include.control.commands import Action
from include.control.flows import alarms
from include.control.flows.alarms import ALARMS, AlarmKind
from include.errors import Unreachable, UsageError
from include.local.broker import create_topic
from include.settings import settings
from tests.conftest import ROOT
from tests.support.pipeline import TOPIC
from tests.support.waiting import wait_until

RUNBOOKS = sorted((ROOT / "docs" / "runbooks").glob("*.md"))
PAGES = [
    *RUNBOOKS,
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "operate").glob("*.md")),
    *sorted((ROOT / "docs" / "guides").glob("*.md")),
    ROOT / "dags" / "control.py",
    ROOT / "dags" / "maintain.py",
]
LONGEST = 55
NEED_SPARK = ("check", "preview")


def page_text(page: Path) -> str:
    """The text of a page. `$table` in the documentation of a DAG stands for a table."""
    return page.read_text().replace("$table", "silver.tracker_readings")


def commands(start: str) -> list[tuple[str, str]]:
    """Page and line, for every line that starts with this text."""
    lines = [(page, line.strip()) for page in PAGES for line in page_text(page).splitlines()]
    return [(page.name, line) for page, line in lines if line.startswith(start)]


def calls(function: str) -> list[ast.Call]:
    """All calls of a function in the code, by the name that the calls use."""
    nodes = [node for file in (ROOT / "include").rglob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    return [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == function]


def constants(function: str, argument: int) -> set[str]:
    """All constants that calls of the function pass as this argument."""
    nodes = [call.args[argument] for call in calls(function) if len(call.args) > argument]
    return {node.value for node in nodes if isinstance(node, ast.Constant)}


OF_PLATFORM = {kind for kind, alarm in ALARMS.items() if alarm.runbook == "supervisor"}


@pytest.mark.parametrize("kind", sorted(set(AlarmKind) - OF_PLATFORM))
def test_every_kind_of_alarm_has_its_page(kind):
    assert (ROOT / alarms.runbook(kind)).read_text().startswith(f"# {kind}: ")


@pytest.mark.parametrize("page", RUNBOOKS, ids=lambda page: page.stem)
def test_a_page_is_short_and_says_whether_data_is_lost_and_when_to_wake_somebody(page: Path):
    text = page.read_text()
    assert len(text.splitlines()) <= LONGEST
    assert "**Is data lost?**" in text
    assert "\n## Escalate\n" in text


@pytest.mark.parametrize(("page", "line"), commands("airflow dags trigger control.stream"))
def test_every_command_names_a_flow_or_driver_and_an_action_that_exist(page, line):
    *_, option, form = shlex.split(line)
    conf = json.loads(form)
    assert option == "-c"
    assert conf.keys() in [{target, "action", "reason"} for target in ("flow", "driver", "job")]
    assert conf.get("flow", "gold.heart_rate_by_model") in catalog.load().flows
    assert conf.get("driver", "main") in catalog.load().drivers()
    assert conf["action"] in list(Action)
    assert conf["reason"]


@pytest.mark.parametrize(("page", "line"), commands("airflow dags trigger maintain"))
def test_every_window_that_a_page_asks_for_is_one_of_a_table(page, line):
    *command, form = shlex.split(line)
    assert command == ["airflow", "dags", "trigger", "maintain", "-c"]
    asked = json.loads(form)
    assert asked.pop("table") in catalog.load().tables
    assert asked in ({}, {"dry_run": True})


@pytest.mark.parametrize(("page", "line"), commands("sluice "))
def test_every_call_of_sluice_is_one_that_it_takes(page, line, tmp_path: Path, monkeypatch):
    name, *arguments = shlex.split(line)[1:]
    monkeypatch.setattr(sys, "argv", ["sluice", name, *(["--help"] if name in NEED_SPARK else arguments)])
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICE_CONTROL_URL", f"sqlite:///{tmp_path}/c.db")
    settings.cache_clear()
    try:
        main()
    except NotDone:
        # No driver runs here that could follow it.
        assert name in COMMANDS[ON_CALL]
    except (Unreachable, UsageError) as error:
        not_here = (
            r"start the flow .*first$|^SLUICE_CATALOG is not set|^SLUICE_CONTROL_URL is SQLite"
            r"|no table declares a subject|is no certificate|there is no key to destroy"
        )
        assert re.search(not_here, str(error))
    except SystemExit as end:
        assert end.code in (0, None)
    finally:
        monkeypatch.undo()
        settings.cache_clear()


def test_every_module_that_a_page_runs_exists():
    for page in PAGES:
        for module in re.findall(r"python -m (include[\w.]*)", page.read_text()):
            assert importlib.util.find_spec(module), f"{page.name}: {module}"


def test_every_page_that_a_page_links_to_exists():
    for page in RUNBOOKS:
        for link in re.findall(r"\]\(([\w./-]+\.md)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_page_that_the_code_names_exists():
    files = [file for folder in ("include", "dags", "jobs") for file in (ROOT / folder).rglob("*.py")]
    named = {page for file in files for page in re.findall(r"\bdocs/[\w/.-]+\.md\b", file.read_text())}
    assert len(named) > 5
    assert [page for page in sorted(named) if not (ROOT / page).exists()] == []


def test_every_error_that_needs_a_person_has_its_section():
    error_names = constants("FlowBroken", 1)
    headings = re.findall(r"^## (.+)$", (ROOT / "docs" / "runbooks" / "broken.md").read_text(), re.MULTILINE)
    section_names = {name for heading in headings for name in heading.split(", ")}
    assert len(error_names) >= 6
    assert error_names - section_names == set()


def test_every_state_of_the_supervisor_has_its_section():
    text = (ROOT / "docs" / "runbooks" / "supervisor.md").read_text()
    for kind in OF_PLATFORM - {AlarmKind.TRIAL}:
        assert re.search(rf"^## {kind}\b", text, re.MULTILINE), kind


def test_the_command_that_makes_kafka_keep_records_longer_does_that(broker):
    create_topic(broker, TOPIC, 3)
    [command] = [line for _, line in commands("python -c") if "retention.ms" in line]
    environment = {**os.environ, "SLUICE_KAFKA": broker, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    topic = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
    admin = AdminClient({"bootstrap.servers": broker})

    def retention() -> str:
        [future] = admin.describe_configs([topic]).values()
        return future.result(30)["retention.ms"].value

    # The broker answers before its own view of the topic is new.
    wait_until(lambda: retention() == "864000000", 30, retention)
