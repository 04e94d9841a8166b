"""Reads of stored tables by pyarrow, up to the end of the process."""

import os
import subprocess
import sys

import pyarrow
import pytest
from deltalake import write_deltalake

from include.delta import stored_table
from include.lake import locations
from tests.conftest import ROOT

# Arrow still reads ahead when this process ends.
EARLY_EXIT = """
from include.delta import stored_table

next(stored_table.dataset("bronze.x").to_batches(columns=["number"]))
"""

pytestmark = pytest.mark.usefixtures("home")


def test_a_process_that_ends_while_arrow_still_reads_ends_well(home):
    for _ in range(20):
        rows = pyarrow.table({"number": range(5_000), "text": ["x" * 20] * 5_000})
        write_deltalake(str(locations.table_path("bronze.x")), rows, mode="append")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SLUICE_HOME": str(home)}
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, "-c", EARLY_EXIT], env=environment, capture_output=True, text=True, timeout=60
        )
        assert (result.returncode, result.stderr) == (0, "")


def test_values_by_which_a_table_is_partitioned_may_hold_anything():
    values = ["a b", "c:d", "e%20f", "ü/ö", "x=y", "pl+us", None]
    rows = pyarrow.table({"key": values, "number": range(len(values))})
    write_deltalake(str(locations.table_path("bronze.y")), rows, partition_by=["key"])
    stored = stored_table.dataset("bronze.y").to_table().to_pylist()
    assert {row["number"]: row["key"] for row in stored} == dict(enumerate(values))


def test_nothing_else_reads_by_threads_that_call_python():
    files = [file for file in (ROOT / "include").rglob("*.py") if "to_pyarrow_" in file.read_text()]
    assert files == [ROOT / "include" / "delta" / "stored_table.py"]
