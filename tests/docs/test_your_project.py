"""docs/operate/upgrades.md: a project without the examples upgrades to a newer Sluice."""

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from include.control.store import database, migrations
from include.local.remove_examples import EXAMPLES
from tests.conftest import ROOT
from tests.support import checkout

PAGE = (ROOT / "docs" / "operate" / "upgrades.md").read_text()
[UPGRADE, COPY] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
# The platform of these tests sets such variables.
EXCLUDED_PREFIXES = ("SLUICE_", "AIRFLOW", "MAKE", "MFLAGS", "PYTHONPATH", "GIT_")
GIT_IDENTITY = {f"GIT_{role}_{field}": "somebody" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
ENVIRONMENT = {
    name: value for name, value in os.environ.items() if not name.startswith(EXCLUDED_PREFIXES)
} | GIT_IDENTITY

TABLE = "include/tables/bronze/orders.py"
CORE_FILES = ("tests/conftest.py", "tests/support/flows.py", "tests/unit/control/leases/test_lease.py")
CHANGED_EXAMPLE = "include/examples/tables/gold/heart_rate_by_model.py"
SPEC = "include/spec/table.py"


def shell(directory: Path, script: str) -> str:
    result = subprocess.run(["bash", "-ec", script], cwd=directory, env=ENVIRONMENT, capture_output=True, text=True)
    assert result.returncode == 0, f"{script}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture
def sluice(tmp_path: Path) -> Path:
    """Sluice's own repository, with one commit."""
    # The test does not need these two hundred small files.
    repository = checkout.copy_to(tmp_path / "sluice", leaves_out="tests/mistakes/")
    shell(repository, "git init --quiet --initial-branch=main; git add --all; git commit --quiet --message first")
    return repository


def test_an_upgrade_brings_no_example_back_and_keeps_what_is_ours(sluice: Path, tmp_path: Path):
    shell(tmp_path, "git clone --quiet --origin sluice sluice my-platform")
    project = tmp_path / "my-platform"
    (project / "var").mkdir()
    (project / "var" / "venv").symlink_to(sys.prefix)
    shell(project, "make SLUICE_VENV=$PWD/var/venv remove-examples; git add --all; git commit --quiet --message ours")
    (project / TABLE).write_text('"""Ours."""\n')
    shell(project, f"git add {TABLE}; git commit --quiet --message 'a table'")

    for name in (CHANGED_EXAMPLE, "tests/support/pipeline.py", SPEC):
        (sluice / name).write_text((sluice / name).read_text() + "\n# Newer.\n")
    (sluice / "tests" / "unit" / "test_newer.py").write_text("from tests.support import pipeline\n")
    shell(sluice, "git add --all; git commit --quiet --message second")

    shell(project, UPGRADE)
    assert (project / TABLE).read_text() == '"""Ours."""\n'
    assert (project / SPEC).read_text().endswith("# Newer.\n")
    assert [name for name in CORE_FILES if not (project / name).exists()] == []
    removed_paths = ("include/examples", "tests/support/pipeline.py", "tests/unit/test_newer.py")
    assert [name for name in removed_paths if (project / name).exists()] == []
    assert shell(project, "git status --porcelain") == ""


def test_a_table_that_reads_an_example_keeps_them_from_being_removed(sluice: Path):
    (sluice / TABLE).write_text(
        "from include.spec import Delta, Table\n\n"
        'TABLE = Table(name="bronze.orders", comment="", schema="a INT", source=Delta("silver.tracker_readings"))\n'
    )
    result = subprocess.run(
        [sys.executable, "-m", "include.local.remove_examples"],
        cwd=sluice,
        env={**ENVIRONMENT, "PYTHONPATH": str(sluice)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 3
    assert "source is 'silver.tracker_readings', which no file declares" in result.stderr
    assert (sluice / EXAMPLES.relative_to(ROOT) / "__init__.py").exists()


def test_the_control_database_is_copied_before_it_is_migrated(tmp_path: Path):
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "venv").symlink_to(sys.prefix)
    database.connect(f"sqlite:///{tmp_path / 'var' / 'control.db'}").dispose()
    shell(tmp_path, COPY)
    with closing(sqlite3.connect(tmp_path / "var" / "control.before.db")) as copy:
        assert copy.execute("SELECT version FROM schema_version").fetchall() == [(migrations.newest_version(),)]
