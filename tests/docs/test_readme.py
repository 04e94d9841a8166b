"""The README and the pages that go on from it are run: commands, lines for readers, the example of a table."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, free_port
from tests.support.jobs import SHORT_LIVED

PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in ("operations", "guarantees", "development"))]
BLOCKS = [block for page in PAGES for block in re.findall(r"```(sh|python)\n(.*?)```", page.read_text(), re.DOTALL)]
COMMANDS = [code for language, code in BLOCKS if language == "sh"]


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("readme")


@pytest.fixture(scope="module")
def run(home: Path):
    """Runs commands of the pages against a platform of its own, which ends with the module."""
    own = {
        "SLUICE_HOME": str(home),
        "SLUICE_KAFKA": f"127.0.0.1:{free_port()}",
        "SLUICE_AIRFLOW_PORT": str(free_port()),
        "SLUICE_EVENTS_PER_SECOND": "50",
        **SHORT_LIVED,
    }
    kept = ("SLUICE_JARS", "SLUICE_VENV", "SLUICE_CACHE")
    # Nor what `make test` tells its children, or they would say which directory they enter.
    foreign = ("SLUICE_", "AIRFLOW", "MAKE", "MFLAGS")
    outer = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
    environment = {**outer, **own, **{key: os.environ[key] for key in kept if key in os.environ}}

    def command(text: str) -> subprocess.CompletedProcess:
        text = text.replace("source var/env.sh", f"source {home}/env.sh")
        return subprocess.run(
            ["bash", "-c", text], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
        )

    yield command
    command("make down")


def documented(start: str) -> str:
    """The one command of the pages that starts like this."""
    [found] = [code for code in COMMANDS if code.startswith(start)]
    return found


def test_the_platform_comes_up_is_read_and_goes_down_as_the_readme_says(run, home: Path):
    up = run(documented("make up"))
    assert up.returncode == 0, up.stdout + up.stderr
    assert up.stdout.splitlines()[-1] == "Next     make status, make down"
    assert "gold.heart_rate_by_model" in up.stdout
    again = run("make up")
    assert again.returncode == 0, again.stdout + again.stderr
    status = run("make status")
    assert status.returncode == 0, status.stderr
    assert re.search(r"kafka-broker +\d+", status.stdout)
    held = run(documented("source var/env.sh"))
    assert held.returncode == 5
    assert "silver.tracker_readings is already written by driver 'main'" in held.stdout
    readers = [code for code in COMMANDS if code.startswith("python -c")]
    assert len(readers) == 3
    for reader in readers:
        done = run(f"source var/env.sh && {reader}")
        assert done.returncode == 0, done.stderr
        assert re.search(r"\d", done.stdout)
    down = run(documented("make down"))
    assert re.fullmatch(rf"stopped \d+ processes of {home}", down.stdout.splitlines()[-1]), down.stdout + down.stderr
    assert run("make down").stdout.splitlines()[-1] == f"nothing of {home} was running"
    states = run("source var/env.sh && python -m include.ledger status").stdout
    assert states.startswith("The platform is down: `make down` stopped it ")
    assert "STOPPED" in states
    assert not re.search("BACKING OFF|STUCK|without a word", states), states


def test_the_example_table_is_the_file_it_names():
    [example] = [code for language, code in BLOCKS if language == "python"]
    assert example == (ROOT / "include" / "examples" / "tables" / "gold" / "heart_rate_by_model.py").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_and_document_that_a_page_names_exists(page: Path):
    text = page.read_text()
    named = [ROOT / path for path in re.findall(r"`((?:tests|docs|include|dags|jobs)/[\w/.]+)`", text)]
    named += [page.parent / link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)]
    assert named
    missing = [str(path) for path in named if not path.exists()]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_section_that_a_page_links_to_exists(page: Path):
    for link, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        to = page.parent / link if link else page
        headings = re.findall(r"^#+ (.+)$", to.read_text(), re.MULTILINE)
        assert anchor in [re.sub(r"[^\w -]", "", one).lower().replace(" ", "-") for one in headings], f"{link}#{anchor}"
