"""No test is forgotten: the targets of the Makefile run each, and `make test` a short form of each fault."""

import importlib
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.flows import only_in_full_runs

MAKEFILE = (ROOT / "Makefile").read_text()
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def may_be_skipped(marked: object, name: str = "pytestmark") -> bool:
    found = getattr(marked, name, ())
    return any(mark.name in ("skip", "skipif") for mark in (found if isinstance(found, list | tuple) else [found]))


def runs_in_make_test(test: object) -> bool:
    """Whether at least one of its parameters does."""
    given = [mark.args[1] for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    return not may_be_skipped(test) and all(any(not may_be_skipped(one, "marks") for one in each) for each in given)


@pytest.mark.parametrize("file", [file for file in TESTS if file.parent.name == "faults"], ids=lambda file: file.stem)
def test_make_test_runs_a_short_form_of_each_file_of_faults(file: Path):
    module = importlib.import_module(f"tests.faults.{file.stem}")
    assert not may_be_skipped(module)
    tests = [test for name, test in vars(module).items() if name.startswith("test_")]
    assert any(runs_in_make_test(test) for test in tests)


def test_a_test_whose_only_parameters_are_long_does_not_run_in_make_test():
    @pytest.mark.parametrize("moment", [pytest.param("late", marks=only_in_full_runs)])
    def only_long(moment): ...

    @only_in_full_runs
    def long(): ...

    @pytest.mark.parametrize("moment", ["early", pytest.param("late", marks=only_in_full_runs)])
    def short(moment): ...

    assert [runs_in_make_test(test) for test in (only_long, long, short)] == [False, False, True]


def test_make_faults_runs_every_test_that_make_test_leaves_out():
    [paths] = re.findall(r"SLUICE_FAULTS=full \S+ -m pytest (.*)", MAKEFILE)
    left_out = [
        file for file in TESTS if re.search(r"\b(is_long|only_in_full_runs|FULL|SLUICE_FAULTS)\b", file.read_text())
    ]
    mine = Path(__file__).resolve()
    lost = [file for file in left_out if file != mine and not any(file.is_relative_to(ROOT / p) for p in paths.split())]
    assert left_out
    assert lost == []


def test_the_two_halves_of_make_test_are_all_of_it():
    platforms, others = re.findall(r"^\t@\$\(IN_VENV\) -m pytest (.*PLATFORMS.*)$", MAKEFILE, re.MULTILINE)
    assert (platforms, others) == ("$(PLATFORMS)", "$(PLATFORMS:%=--ignore=%)")


def test_what_checks_sluice_holds_all_that_runs_it_in_the_same_versions():
    runs, checks = (
        set(re.findall(r"^\S+==\S+", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements.lock", "requirements-dev.lock")
    )
    assert runs < checks
    assert {package.partition("==")[0] for package in checks - runs} >= {"pytest", "hypothesis", "mypy", "ruff"}
