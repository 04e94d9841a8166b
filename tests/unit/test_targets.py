"""The targets of the Makefile run every test, `make test` proves each guarantee, and fault tests have short forms."""

import importlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.flows import only_in_full_runs
from tests.support.slow import QUICK, SLOW, is_slow

MAKEFILE = (ROOT / "Makefile").read_text()
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def may_be_skipped(item: object, name: str = "pytestmark") -> bool:
    marks = getattr(item, name, ())
    return any(mark.name in ("skip", "skipif") for mark in (marks if isinstance(marks, list | tuple) else [marks]))


def runs_in_short_form(test: object) -> bool:
    """Whether `make test-all` runs the test with at least one of its parameters."""
    parameter_sets = [mark.args[1] for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    return not may_be_skipped(test) and all(
        any(not may_be_skipped(parameters, "marks") for parameters in alternatives) for alternatives in parameter_sets
    )


# These start jobs of their own, which takes minutes. `make test-all` ends the same work by exceptions at the same
# phases, and lets two processes commit at once without a window between them. The README's demo kills a driver of a
# platform with Airflow.
SHORT_FORMS = {
    "tests/faults/platforms/test_airflow.py": "tests/docs/test_readme.py",
    "tests/faults/platforms/test_executors.py": "tests/unit/engine/stream/test_executors.py",
    "tests/faults/platforms/test_moves.py": "tests/faults/test_moved_flows.py",
    "tests/faults/platforms/test_online_compaction.py": "tests/faults/platforms/test_committers_on_s3.py",
    "tests/faults/platforms/test_planted_secrets.py": "tests/unit/test_planted_secrets.py",
    "tests/faults/platforms/test_wrong_files.py": "tests/unit/project/test_last_good.py",
    "tests/faults/platforms/test_killed_replay.py": "tests/streaming/jobs/test_replay.py",
    "tests/faults/platforms/test_yarn.py": "tests/unit/airflow/test_yarn.py",
    "tests/faults/test_backfills.py": "tests/streaming/jobs/test_backfill.py",
    "tests/faults/test_erase_kills.py": "tests/streaming/jobs/test_erase.py",
    "tests/faults/test_rewinds.py": "tests/streaming/jobs/test_rewind.py",
}
FAULTS = sorted(str(file.relative_to(ROOT)) for file in TESTS if "faults" in file.parts)


@pytest.mark.parametrize("file", FAULTS)
def test_make_test_all_runs_a_short_form_of_each_file_of_faults(file: str):
    short_form = SHORT_FORMS.get(file, file)
    module = importlib.import_module(short_form.removesuffix(".py").replace("/", "."))
    assert not may_be_skipped(module)
    tests = [test for name, test in vars(module).items() if name.startswith("test_")]
    assert any(runs_in_short_form(test) for test in tests)


def test_only_files_that_have_no_short_test_have_their_short_form_elsewhere():
    for file in SHORT_FORMS:
        module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
        tests = [test for name, test in vars(module).items() if name.startswith("test_")]
        assert may_be_skipped(module) or not any(map(runs_in_short_form, tests))


def test_a_test_whose_only_parameters_are_long_has_no_short_form():
    @pytest.mark.parametrize("moment", [pytest.param("late", marks=only_in_full_runs)])
    def only_long(moment): ...

    @only_in_full_runs
    def long(): ...

    @pytest.mark.parametrize("moment", ["early", pytest.param("late", marks=only_in_full_runs)])
    def short(moment): ...

    assert [runs_in_short_form(test) for test in (only_long, long, short)] == [False, False, True]


def guarantees() -> dict[str, list[str]]:
    """The files and folders of tests that each guarantee names, by its first words."""
    pages = sorted((ROOT / "docs" / "concepts").glob("guarantees*.md"))
    items = [item for page in pages for item in re.split(r"\n(?=- |\n)", page.read_text()) if "`tests/" in item]
    return {" ".join(item.split()[1:8]): re.findall(r"`(tests/[^`]+)`", item) for item in items}


def is_run_by_make_test(file: Path, name: str, test: object) -> bool:
    """Whether `make test` runs the test, with at least one of its parameters."""
    node = f"{file.relative_to(ROOT)}::{name}"
    quick_parameters = any(entry.startswith(f"{node}[") for entry in QUICK)
    return runs_in_short_form(test) and (quick_parameters or not is_slow(node))


# In a project without the examples, some of the tests are gone.
@pytest.mark.skipif(not (ROOT / "include" / "examples").exists(), reason="there are no examples")
@pytest.mark.parametrize("names", guarantees().values(), ids=guarantees())
def test_make_test_proves_each_guarantee(names: list[str]):
    paths = [ROOT / name for name in names]
    for file in [file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])]:
        module = importlib.import_module(str(file.relative_to(ROOT)).removesuffix(".py").replace("/", "."))
        tests = {name: test for name, test in vars(module).items() if name.startswith("test_")}
        if not may_be_skipped(module) and any(is_run_by_make_test(file, name, test) for name, test in tests.items()):
            return
    pytest.fail("name a test of tests/support/slow.py that runs in `make test`")


@pytest.mark.skipif(not (ROOT / "include" / "examples").exists(), reason="there are no examples")
@pytest.mark.parametrize("name", [*SLOW, *QUICK])
def test_what_is_slow_or_quick_exists(name: str):
    file, _, test = name.partition("[")[0].partition("::")
    assert (ROOT / file).exists()
    assert not test or f"def {test}(" in (ROOT / file).read_text()


@pytest.mark.parametrize("name", QUICK)
def test_what_is_quick_would_be_slow_otherwise(name: str):
    assert any(name.startswith(folder) for folder in SLOW)


def test_a_test_is_slow_by_its_folder_its_file_its_name_or_its_database():
    slow = ("tests/streaming/test_new.py::test_new", "tests/unit/control/test_new.py::test_new[a-postgresql]")
    quick = ("tests/unit/test_new.py::test_new", "tests/unit/control/test_new.py::test_new[sqlite]", QUICK[0])
    assert [is_slow(name) for name in (*slow, *quick)] == [True, True, False, False, False]


def dry_run(*targets: str) -> list[str]:
    """The commands of these targets."""
    # Within another make, it would also print which directory it enters, and take its variables.
    excluded = ("MAKE", "MFLAGS", "MARKED")
    variables = {name: value for name, value in os.environ.items() if not name.startswith(excluded)}
    return subprocess.check_output(["make", "--dry-run", *targets], cwd=ROOT, env=variables, text=True).splitlines()


def test_make_test_and_make_test_rest_are_all_tests():
    marked = re.findall(r"^(test\S*): test-setup .*\n\t@\$\(SIDE_BY_SIDE\) MARKED=(.*)$", MAKEFILE, re.MULTILINE)
    assert marked == [("test", '"not slow"'), ("test-rest", "slow")]
    assert re.search(r"^test-all: test-setup .*\n\t@\$\(SIDE_BY_SIDE\)$", MAKEFILE, re.MULTILINE)


def test_make_faults_is_make_test_all_at_full_length_and_then_a_part_of_it_with_the_lake_on_s3():
    [recipe] = re.findall(r"^faults: .*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert recipe == "\t@SLUICE_FAULTS=full $(MAKE) test-all\n\t@SLUICE_FAULTS=full $(MAKE) faults-on-s3\n"
    command, _, files = dry_run("faults-on-s3")[-1].partition(" -m pytest ")
    assert command.startswith("SLUICE_TEST_LAKE=s3 ")
    assert {ROOT / file for file in files.split()} < set(TESTS)


def test_the_three_processes_run_each_test_once():
    targets = ("test-platforms", "test-units", "test-tables")
    calls = [line.partition(" -m pytest ")[2] for line in dry_run(*targets) if " -m pytest " in line]
    assert all(call.startswith('-m "" ') for call in calls)
    platforms, units, ignored = (call.removeprefix('-m "" ').split() for call in calls)
    assert sorted(ignored) == sorted(f"--ignore={path}" for path in (*platforms, *units))
    folders = [path for path in (*platforms, *units) if (ROOT / path).is_dir()]
    assert not [(path, folder) for path in (*platforms, *units) for folder in folders if path.startswith(f"{folder}/")]
    assert len({*platforms, *units}) == len(platforms) + len(units)


def test_what_checks_sluice_holds_all_that_runs_it_in_the_same_versions():
    runtime_pins, development_pins = (
        set(re.findall(r"^\S+==\S+", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements.lock", "requirements-dev.lock")
    )
    assert runtime_pins < development_pins
    assert {package.partition("==")[0] for package in development_pins - runtime_pins} >= {
        "pytest",
        "hypothesis",
        "mypy",
        "ruff",
    }
