"""The tests run the README and the pages that follow it: commands, queries, the demo and the example table."""

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, free_port
from tests.support.jobs.process import SHORT_LIVED
from tests.support.live import ODD_NAME

FOLLOWING = ("operate/start-and-stop.md", "guides/read-tables.md")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / page for page in FOLLOWING)]
COMMANDS = [code for page in PAGES for code in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)]


README = (ROOT / "README.md").read_text()
# What differs from run to run, and what stands for it. A recording in the README names its values, or holds them.
VARYING = {
    r"\s+": " ",
    r"\S*/bin/sluice": "sluice",
    r"password \S+": "password #",
    # The gold tables that had read the row by then.
    r"( -> gold\.\w+ version [^\s.]+)+": " -> gold",
    # Rows break rules as they like.
    r"broke '[^.]+'": "broke rules",
    r"<[a-z ]+>|\d+([.,:]\d+)*Z?": "#",
}


def shape(printed: str) -> str:
    """What a text says whatever the run."""
    for pattern, stands_for_it in VARYING.items():
        printed = re.sub(pattern, stands_for_it, printed)
    return printed.strip()


def readme_block(start: str) -> str:
    """The only text block of the README that starts with this text."""
    [block] = [code for code in re.findall(r"```text\n(.*?)```", README, re.DOTALL) if code.startswith(start)]
    return block


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    # The pages put the directory between apostrophes.
    directory = tmp_path_factory.mktemp("readme") / ODD_NAME.replace("'", "")
    directory.mkdir()
    return directory


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
        text = text.replace("source var/env.sh", f"source {shlex.quote(str(home))}/env.sh")
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
    summary = "\n".join(up.stdout.splitlines()[-5:]).replace(command, "sluice").replace(str(home), "<SLUICE_HOME>")
    assert shape(summary) == shape(readme_block("Airflow  "))
    second_up = run("make up")
    assert second_up.returncode == 0, second_up.stdout + second_up.stderr
    demo = run("make demo")
    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert shape(demo.stdout.replace(command, "sluice")) == shape(readme_block("1. "))
    status = run("make status")
    assert status.returncode == 0, status.stderr
    assert re.search(r"kafka-broker +\d+", status.stdout)
    conflict = run(page_command("source var/env.sh"))
    assert conflict.returncode == 5
    assert "silver.tracker_readings is already written by driver 'main'" in conflict.stdout
    down = run("make down")
    assert re.fullmatch(rf"stopped \d+ processes of {re.escape(str(home))}", down.stdout.splitlines()[-1]), (
        down.stdout + down.stderr
    )
    assert run("make down").stdout.splitlines()[-1] == f"nothing of {home} was running"
    readers = [code for code in COMMANDS if code.startswith("python -c")]
    assert len(readers) == 3
    for reader in readers:
        result = run(f"source var/env.sh && {reader}")
        assert result.returncode == 0, result.stderr
        assert re.search(r"\d", result.stdout)
    states = run("source var/env.sh && sluice status").stdout
    assert states.startswith("The platform is down: `make down` stopped it ")
    assert "STOPPED" in states
    assert not re.search("BACKING OFF|STUCK|without an error report", states), states


def test_the_example_table_is_the_file_it_names():
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    [name] = re.findall(r"`(include/examples/tables/\S+\.py)`", README)
    assert example == (ROOT / name).read_text()


RECORDING = """
1. A row came through. Record 5123 of tracker-events/1 was sent at 21:46:40Z, and is one of 14,031
   rows of silver.tracker_readings since 1.4 s later.

2. Its way: bronze.tracker_events version 40 -> silver.tracker_readings version 39 ->
   gold.heart_rate_by_model version 41 -> gold.heart_rate_by_day version 2.
   $ /home/ada/sluice/bin/sluice explain --topic tracker-events --partition 1 --offset 5123

3. Bad rows wait with their reason. 1,204 are in quarantine.silver_tracker_readings; the newest
   (topic tracker-events, partition 0, offset 5110) broke 'identified', 'plausible heart rate'.
   $ /home/ada/sluice/bin/sluice quarantine silver.tracker_readings

   (driver 'main', process 401, was killed; Airflow looks every minute)
4. A driver dies, and nothing is lost. Process 401 of driver 'main' was killed, and 30 s later
   process 512 had written the next batch. silver.tracker_readings: 57 batches, every row accounted
   for.
   $ /home/ada/sluice/bin/sluice verify silver.tracker_readings

5. Look around: http://127.0.0.1:38211 is Airflow.
   $ /home/ada/sluice/bin/sluice status
   $ /home/ada/sluice/bin/sluice graph

"""


def test_what_differs_between_two_runs_of_the_demo_is_no_difference_from_the_readme():
    assert shape(RECORDING) == shape(readme_block("1. "))


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("is one of 14,031", "is among 14,031"),
        (" -> gold.heart_rate_by_model version 41 -> gold.heart_rate_by_day version 2", ""),
        ("every row accounted\n   for", "2 rows missing"),
        ("sluice graph", "sluice tables"),
    ],
)
def test_another_sentence_of_the_demo_is_a_difference_from_the_readme(said: str, says: str):
    text = RECORDING.replace("->\n   gold", "-> gold")
    assert said in text
    assert shape(text.replace(said, says)) != shape(readme_block("1. "))
