"""Long-lived processes log time, level, driver, flow and batch, for people or as JSON."""

import json
import os
import re
import subprocess
import sys

import pytest

from include.errors import UsageError
from include.settings import from_environment
from tests.conftest import ROOT

EVENTS = """
from include import logs
logs.start("main")
logs.warning("100 % of it conflicted", "silver.a", 7)
logs.info("begins")
try:
    1 / 0
except ZeroDivisionError as error:
    logs.error(error, traceback=True)
"""


def log_of(**variables: str) -> str:
    environment = {**os.environ, **variables}
    result = subprocess.run([sys.executable, "-c", EVENTS], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "")
    return result.stderr


def test_a_line_for_people_has_time_level_driver_flow_and_batch():
    first, second, *others = log_of().splitlines()
    time = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ"
    assert re.fullmatch(rf"{time} WARNING \[main\] sluice: silver.a: batch 7: 100 % of it conflicted", first)
    assert re.fullmatch(rf"{time} INFO \[main\] sluice: begins", second)
    assert others[-1] == "ZeroDivisionError: division by zero"


def test_a_line_of_json_has_a_field_for_each():
    first, second, third = map(json.loads, log_of(SLUICE_LOG_FORMAT="json").splitlines())
    about = {"level": "WARNING", "driver": "main", "flow": "silver.a", "batch": 7, "message": "100 % of it conflicted"}
    assert first.items() >= about.items()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert (second["flow"], second["batch"], second["message"]) == (None, None, "begins")
    assert third["traceback"].endswith("ZeroDivisionError: division by zero")


def test_another_format_is_refused():
    with pytest.raises(UsageError, match="SLUICE_LOG_FORMAT is 'xml': set it to text or json"):
        from_environment({"SLUICE_LOG_FORMAT": "xml"})
