"""The tests run the commands of docs/start/first-table.md in a fresh clone without the examples."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from include.local.remove_examples import EXAMPLES
from tests.conftest import ROOT, free_port
from tests.support import checkout
from tests.support.jobs.process import SHORT_LIVED
from tests.support.waiting import wait_until

PAGE = (ROOT / "docs" / "start" / "first-table.md").read_text()
BLOCKS = re.findall(r"```(sh|text)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [code for language, code in BLOCKS if language == "sh"]
TABLES = dict(re.findall(r"make new-table NAME=(\S+) (.*)", PAGE.replace("\\\n", "")))
MAKES_LIVE = re.compile(r"sed -i 1d (\S+)\n")
QUERY = next(code for code in COMMANDS if "duckdb" in code)


@pytest.fixture(scope="module")
def clone(tmp_path_factory) -> Path:
    """A copy of all files that Git tracks or would add."""
    return checkout.copy_to(tmp_path_factory.mktemp("clone") / "sluice")


@pytest.fixture(scope="module")
def run(clone: Path):
    """Run a command of the page in the clone. Its processes end with the module."""
    ports = {"SLUICE_KAFKA": f"127.0.0.1:{free_port()}", "SLUICE_AIRFLOW_PORT": str(free_port())}
    paths = {name: os.environ[name] for name in ("SLUICE_JARS", "SLUICE_VENV", "SLUICE_CACHE") if name in os.environ}
    # `make test` sets MAKEFLAGS and the like for its children.
    excluded_prefixes = ("SLUICE_", "AIRFLOW", "MAKE", "MFLAGS", "PYTHONPATH", "SPARK_CONF_DIR")
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(excluded_prefixes)}
    # mypy has checked nearly all of these files in the repository.
    environment = {**inherited, **ports, **paths, **SHORT_LIVED, "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")}

    def command(text: str) -> str:
        result = subprocess.run(
            ["bash", "-ec", text], cwd=clone, env=environment, capture_output=True, text=True, timeout=600
        )
        assert result.returncode == 0, f"{text}\n{result.stdout}{result.stderr}"
        return result.stdout

    yield command
    command("make down")


def rows(clone: Path, table: str) -> int:
    try:
        return DeltaTable(str(clone / "var" / "lake" / table)).count()
    except TableNotFoundError:
        return 0


def states(run) -> dict[str, str]:
    """The state of each flow."""
    statuses = json.loads(run("source var/env.sh; sluice status --json"))
    return {flow["flow"]: flow["state"] for flow in statuses}


def test_a_newcomer_gets_from_nothing_to_their_own_gold_table(run, clone: Path):
    setup, *steps = COMMANDS[: COMMANDS.index(QUERY)]
    output = run(setup)
    assert "the platform is up; no table holds rows yet" in output
    assert "make new-table" in output
    assert not (clone / EXAMPLES.relative_to(ROOT)).exists()
    for step in steps:
        if made_live := MAKES_LIVE.search(step):
            # The file may be one that this step writes.
            before, after = step[: made_live.start()], step[made_live.start() :]
            run(before)
            assert f"{made_live[1]} is a draft: " in run("source var/env.sh; sluice status")
            step = after
        run(step)
    wait_until(lambda: rows(clone, "gold/orders_by_customer") == 2, 120)
    [expected_output] = [code for language, code in BLOCKS if language == "text"]
    assert run(QUERY) == expected_output
    assert rows(clone, "quarantine/silver_orders") == 2
    further_queries, stop = COMMANDS[COMMANDS.index(QUERY) + 1 :]
    assert "order_id is given" in run(further_queries)
    healthy = dict.fromkeys(("bronze.orders", "silver.orders", "gold.orders_by_customer"), "HEALTHY")
    wait_until(lambda: states(run) == healthy, 120, lambda: str(states(run)))
    import_errors = run("source var/env.sh; airflow dags list-import-errors -o json")
    assert import_errors.splitlines()[-1] in ("[]", "No data found")
    assert run(stop).splitlines()[-1].startswith("stopped ")


def test_the_tests_of_a_table_are_as_the_page_says(run, clone: Path):
    """Runs after the test above, whose tables it uses."""
    page = (ROOT / "docs" / "start" / "your-project.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (clone / "tests" / "tables" / "test_orders.py").write_text(example)
    for name, options in TABLES.items():
        if not (clone / "include" / "tables" / f"{name.replace('.', '/')}.py").exists():
            run(f"make new-table NAME={name} {options}")
            run(f"sed -i 1d include/tables/{name.replace('.', '/')}.py")
    assert "3 passed" in run("$SLUICE_VENV/bin/python -m pytest -q tests/tables/test_orders.py")


def test_what_is_left_without_the_examples_is_a_whole_project(run, clone: Path):
    """Runs after the tests above, or alone on a clone that still has its examples."""
    if (clone / EXAMPLES.relative_to(ROOT)).exists():
        run("make remove-examples")
    python = "$SLUICE_VENV/bin/python"
    lines = run(f"{python} -m pytest --collect-only -q tests").splitlines()
    assert "error" not in lines[-1]
    # These tests need no example table.
    for test in (
        "tests/unit/control/leases/test_lease.py",
        "tests/faults/test_checkpoints.py",
        "tests/streaming/jobs/test_backfill.py",
    ):
        assert any(line.startswith(test) for line in lines)
    run(f"{python} -m pytest -q tests/unit/engine/files/test_csv_header.py")
    run("$SLUICE_VENV/bin/ruff check . && $SLUICE_VENV/bin/ruff format --check . && $SLUICE_VENV/bin/mypy")
