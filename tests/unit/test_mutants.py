"""`make mutants` runs tests and breaks modules that exist."""

import re
import tomllib

from tests.conftest import ROOT


def test_every_file_that_mutants_names_exists():
    named = re.findall(r'"(tests/[\w/]+\.py)"', (ROOT / "tests" / "support" / "mutants.py").read_text())
    assert len(named) > 10
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]
    named += [*settings["only_mutate"], *settings["also_copy"], *settings["pytest_add_cli_args_test_selection"]]
    assert len(named) > 40
    assert [name for name in named if not list(ROOT.glob(name))] == []
