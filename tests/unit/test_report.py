"""Entry points end with one sentence for what a person has to fix, and silently where their reader has left."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from include import errors
from include.errors import SetupError
from tests.conftest import ROOT

PRINTS_MUCH = """
from include.errors import report
def main():
    for number in range(100_000):
        print(number)
report(main)
"""


def command(*arguments: str, **variables: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("program", [PRINTS_MUCH, PRINTS_MUCH.replace("100_000", "1")], ids=["much", "a line"])
def test_a_command_whose_reader_has_left_ends_silently(program: str):
    process = command("-c", program)
    # As `head -0` does. A short output is lost at the last flush.
    process.stdout.close()
    assert process.stderr.read() == ""
    process.stderr.close()
    assert process.wait(60) == errors.READER_GONE


@pytest.mark.parametrize("module", ["include.local.up", "include.local.down", "include.local.check"])
def test_a_home_that_cannot_be_written_is_named_in_one_sentence(tmp_path: Path, module: str):
    (tmp_path / "file").touch()
    process = command("-m", module, SLUICE_HOME=str(tmp_path / "file" / "home"))
    output, error = process.communicate(timeout=60)
    assert (process.returncode, output) == (SetupError.exit_code, "")
    assert error.startswith("sluice: ")
    assert f"{tmp_path / 'file' / 'home'}" in error
    assert "(Not a directory)" in error
    assert error.count("\n") == 1


def test_a_file_that_no_retry_makes_writable_is_named_and_other_errors_are_not_hidden(tmp_path: Path, capsys):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as end:
        errors.report(lambda: (tmp_path / "file" / "log").mkdir())
    assert end.value.code == SetupError.exit_code
    assert capsys.readouterr().err == (
        f"sluice: {tmp_path / 'file' / 'log'} cannot be used (Not a directory): correct its permissions or make room, "
        "or set SLUICE_HOME to another directory\n"
    )
    with pytest.raises(FileNotFoundError):
        errors.report(lambda: (tmp_path / "nowhere").read_text())
