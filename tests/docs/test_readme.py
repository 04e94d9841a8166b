"""The tests run the README and the pages that follow it: commands, queries and the example table."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, free_port
from tests.support.jobs.process import SHORT_LIVED

FOLLOWING = ("operate/start-and-stop.md", "guides/read-tables.md")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / page for page in FOLLOWING)]
COMMANDS = [code for page in PAGES for code in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def run(home: Path):
    """Run commands of the pages against a separate platform, which ends with the module."""
    platform_variables = {
        "SLUICE_HOME": str(home),
        "SLUICE_KAFKA": f"127.0.0.1:{free_port()}",
        "SLUICE_AIRFLOW_PORT": str(free_port()),
        "SLUICE_EVENTS_PER_SECOND": "50",
        **SHORT_LIVED,
    }
    path_variables = ("SLUICE_JARS", "SLUICE_VENV", "SLUICE_CACHE")
    # With the variables of `make test`, its children would print which directory they enter.
    excluded_prefixes = ("SLUICE_", "AIRFLOW", "MAKE", "MFLAGS")
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(excluded_prefixes)}
    environment = {
        **inherited,
        **platform_variables,
        **{key: os.environ[key] for key in path_variables if key in os.environ},
    }

    def command(text: str) -> subprocess.CompletedProcess:
        text = text.replace("source var/env.sh", f"source {home}/env.sh")
        return subprocess.run(
            ["bash", "-c", text], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
        )

    yield command
    command("make down")


def page_command(start: str) -> str:
    """The only command of the pages that starts with this text."""
    [command] = [code for code in COMMANDS if code.startswith(start)]
    return command


def test_the_platform_comes_up_is_read_and_goes_down_as_the_readme_says(run, home: Path):
    up = run(page_command("make up"))
    assert up.returncode == 0, up.stdout + up.stderr
    command = re.fullmatch(r"Next     (.*) status, make down", up.stdout.splitlines()[-1])[1]
    looked = run(f"cd / && {command} status --json")
    assert (looked.returncode, looked.stderr) == (0, "")
    assert "gold.heart_rate_by_model" in up.stdout
    second_up = run("make up")
    assert second_up.returncode == 0, second_up.stdout + second_up.stderr
    demo = run("make demo")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    for expected in (
        r"1\. A row came through\. Record \d+ of tracker-events/\d+ ",
        r"2\. Its way: bronze\.tracker_events version \d+ -> silver\.tracker_readings version \d+ -> gold\.",
        r"3\. Bad rows wait with their reason\. [\d,]+ are in quarantine\.silver_tracker_readings",
        r"4\. A driver dies, and nothing is lost\. Process \d+ of driver 'main' was killed, and \d+ s later process ",
        r"   silver\.tracker_readings: \d+ batches, every row accounted for",
        r"5\. Look around: http://127\.0\.0\.1:\d+ is Airflow\.",
    ):
        assert re.search(expected, demo.stdout), (expected, demo.stdout)
    status = run("make status")
    assert status.returncode == 0, status.stderr
    assert re.search(r"kafka-broker +\d+", status.stdout)
    conflict = run(page_command("source var/env.sh"))
    assert conflict.returncode == 5
    assert "silver.tracker_readings is already written by driver 'main'" in conflict.stdout
    readers = [code for code in COMMANDS if code.startswith("python -c")]
    assert len(readers) == 3
    for reader in readers:
        result = run(f"source var/env.sh && {reader}")
        assert result.returncode == 0, result.stderr
        assert re.search(r"\d", result.stdout)
    down = run(page_command("make down"))
    assert re.fullmatch(rf"stopped \d+ processes of {home}", down.stdout.splitlines()[-1]), down.stdout + down.stderr
    assert run("make down").stdout.splitlines()[-1] == f"nothing of {home} was running"
    states = run("source var/env.sh && sluice status").stdout
    assert states.startswith("The platform is down: `make down` stopped it ")
    assert "STOPPED" in states
    assert not re.search("BACKING OFF|STUCK|without an error report", states), states


def test_the_example_table_is_the_file_it_names():
    [example] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example == (ROOT / "include" / "examples" / "tables" / "gold" / "heart_rate_by_model.py").read_text()
