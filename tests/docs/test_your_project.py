"""docs/your-project.md: a project without the examples takes a newer Sluice in."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from include.control.store import database, migrations
from include.local.remove_examples import EXAMPLES
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "your-project.md").read_text()
[UPGRADE, COPY] = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
# Nor what belongs to the platform of these tests.
FOREIGN = ("SLUICE_", "AIRFLOW", "MAKE", "MFLAGS", "PYTHONPATH", "GIT_")
WHO = {f"GIT_{who}_{what}": "somebody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)} | WHO

TABLE = "include/tables/bronze/orders.py"
KEPT = ("tests/conftest.py", "tests/support/flows.py", "tests/unit/control/test_lease.py")
CHANGED = "include/examples/tables/gold/heart_rate_by_model.py"
SPEC = "include/spec/table.py"


def shell(where: Path, text: str) -> str:
    done = subprocess.run(["bash", "-ec", text], cwd=where, env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def sluice(tmp_path: Path) -> Path:
    """Sluice's own repository, with one commit."""
    into = tmp_path / "sluice"
    for name in shell(ROOT, "git ls-files --cached --others --exclude-standard").splitlines():
        # Two hundred small ones that take no part in this.
        if (ROOT / name).exists() and not name.startswith("tests/mistakes/"):
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)
    shell(into, "git init --quiet --initial-branch=main; git add --all; git commit --quiet --message first")
    return into


def test_an_upgrade_brings_no_example_back_and_keeps_what_is_ours(sluice: Path, tmp_path: Path):
    shell(tmp_path, "git clone --quiet --origin sluice sluice my-platform")
    ours = tmp_path / "my-platform"
    (ours / "var").mkdir()
    (ours / "var" / "venv").symlink_to(sys.prefix)
    shell(ours, "make SLUICE_VENV=$PWD/var/venv remove-examples; git add --all; git commit --quiet --message ours")
    (ours / TABLE).write_text('"""Ours."""\n')
    shell(ours, f"git add {TABLE}; git commit --quiet --message 'a table'")

    for name in (CHANGED, "tests/support/pipeline.py", SPEC):
        (sluice / name).write_text((sluice / name).read_text() + "\n# Newer.\n")
    (sluice / "tests" / "unit" / "test_newer.py").write_text("from tests.support import pipeline\n")
    shell(sluice, "git add --all; git commit --quiet --message second")

    shell(ours, UPGRADE)
    assert (ours / TABLE).read_text() == '"""Ours."""\n'
    assert (ours / SPEC).read_text().endswith("# Newer.\n")
    assert [name for name in KEPT if not (ours / name).exists()] == []
    gone = ("include/examples", "tests/support/pipeline.py", "tests/unit/test_newer.py")
    assert [name for name in gone if (ours / name).exists()] == []
    assert shell(ours, "git status --porcelain") == ""


def test_a_table_that_reads_an_example_keeps_them_from_being_removed(sluice: Path):
    (sluice / TABLE).write_text(
        "from include.spec import Delta, Table\n\n"
        'TABLE = Table(name="bronze.orders", comment="", schema="a INT", source=Delta("silver.tracker_readings"))\n'
    )
    refused = subprocess.run(
        [sys.executable, "-m", "include.local.remove_examples"],
        cwd=sluice,
        env={**ENVIRONMENT, "PYTHONPATH": str(sluice)},
        capture_output=True,
        text=True,
    )
    assert refused.returncode == 3
    assert "source is 'silver.tracker_readings', which no file declares" in refused.stderr
    assert (sluice / EXAMPLES.relative_to(ROOT) / "__init__.py").exists()


def test_the_control_database_is_copied_before_it_is_migrated(tmp_path: Path):
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "venv").symlink_to(sys.prefix)
    database.connect(f"sqlite:///{tmp_path / 'var' / 'control.db'}").dispose()
    shell(tmp_path, COPY)
    with closing(sqlite3.connect(tmp_path / "var" / "control.before.db")) as copy:
        assert copy.execute("SELECT version FROM schema_version").fetchall() == [(migrations.newest_version(),)]
