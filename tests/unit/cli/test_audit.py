"""`sluice audit` verifies the audit, and exports it so that an auditor can read and check it without Sluice."""

import csv
import io
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, delete, update

from include.cli import main as cli
from include.control.store import audit, database
from include.control.store.schema import audits
from include.errors import AuditBroken, UsageError
from include.settings import settings
from tests.conftest import ROOT


@pytest.fixture
def engine(home: Path, own_settings) -> Iterator[Engine]:
    """A control database with two commands of persons."""
    own_settings(SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}")
    control_engine = database.connect(settings().control_url)
    with database.transaction(control_engine) as connection:
        audit.record(connection, "ada", "stop", "silver.orders", "=cmd()", "stops after the current batch")
        audit.record(connection, "ada", "skip", "silver.orders", "ż, poison", "leaves out batch 3", approver="grace")
    yield control_engine
    control_engine.dispose()


@pytest.fixture
def run(engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> Callable[..., str]:
    def command(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["sluice", "audit", *arguments])
        cli.main()
        return capsys.readouterr().out

    return command


def test_what_was_written_is_verified_and_its_head_is_printed_to_be_kept(run, engine):
    text = run("verify")
    [head] = re.findall(r"^head of commands: (\w{64})$", text, re.MULTILINE)
    assert text.startswith("2 rows are as they were written\n")
    assert run("verify", "--head", head) == text
    with database.transaction(engine) as connection:
        connection.execute(delete(audits).where(audits.c.number == 2))
    run("verify")
    with pytest.raises(AuditBroken, match="1 findings"):
        run("verify", "--head", head)


def test_a_changed_row_is_named_and_the_command_fails(run, engine, capsys):
    with database.transaction(engine) as connection:
        connection.execute(update(audits).where(audits.c.number == 1).values(who="mallory"))
    with pytest.raises(AuditBroken) as error:
        run("verify")
    assert error.value.exit_code == 11
    shown = capsys.readouterr().out
    assert "changed: row 1 (stop silver.orders by mallory) is not as it was written" in shown


def test_a_spreadsheet_shows_who_did_what_when_and_why_and_computes_nothing(run):
    first, second = csv.DictReader(io.StringIO(run("export")))
    persons = [(row["who"], row["approver"], row["action"], row["target"]) for row in (first, second)]
    assert persons == [("ada", "", "stop", "silver.orders"), ("ada", "grace", "skip", "silver.orders")]
    assert (first["reason"], second["reason"]) == ("'=cmd()", "ż, poison")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", first["at"])


def test_an_auditor_checks_exported_lines_by_the_program_of_the_documentation(run, home, monkeypatch):
    [program] = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "operate" / "audit.md").read_text(), re.DOTALL)
    text = run("export", "--format", "jsonl")
    assert [json.loads(line)["reason"] for line in text.splitlines()] == ["=cmd()", "ż, poison"]
    monkeypatch.chdir(home)
    for forged in (text, text.replace("poison", "lunch")):
        Path("audit.jsonl").write_text(forged)
        if forged == text:
            exec(program, {})
        else:
            with pytest.raises(AssertionError):
                exec(program, {})


def test_a_head_is_only_for_verification(run):
    with pytest.raises(UsageError, match="--head is for verify"):
        run("export", "--head", "0")
