"""`python -m include.ledger` in a process of its own: the calendar of windows, the plan of a table, and holds."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow
import pytest
from deltalake import write_deltalake
from sqlalchemy import Engine, update

from include.control import vacuum_holds
from include.control.jobs import windows
from include.control.jobs.windows import TableSize
from include.control.leases import lease
from include.control.leases.lock import LockRequest
from include.control.store import database
from include.control.store.schema import leases
from include.settings import from_environment
from tests.conftest import ROOT
from tests.support.windows import set_times

TABLE, OTHER, QUARANTINE = "silver.tracker_readings", "gold.heart_rate_by_model", "quarantine.silver_tracker_readings"
BEFORE = TableSize(version=4, files=40, bytes=12_000_000, small_files=38, rows=1_000)
AFTER = TableSize(version=5, files=2, bytes=10_000_000, small_files=0, rows=1_000)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """The control database of a home that nobody else uses."""
    control_engine = database.connect(from_environment({"SLUICE_HOME": str(tmp_path)}).control_url)
    yield control_engine
    control_engine.dispose()


@pytest.fixture
def ledger(engine: Engine, tmp_path: Path):
    """Runs the command, and returns its output."""

    def run(*arguments: str, exit_code: int = 0) -> str:
        result = subprocess.run(
            [sys.executable, "-m", "include.ledger", *arguments],
            cwd=ROOT,
            env={**os.environ, "SLUICE_HOME": str(tmp_path), "SLUICE_CONTROL_URL": str(engine.url)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert result.returncode == exit_code, result.stdout + result.stderr
        return result.stderr if exit_code else result.stdout

    return run


@pytest.fixture
def hold_lease(engine: Engine, holder):
    """Acquires the window lease of a table for a live job, and returns its epoch."""

    def acquire(table: str = TABLE) -> int:
        [window_lease] = lease.acquire(engine, [lease.window_lease(table)], holder(), 60)
        return window_lease.epoch

    return acquire


def plan(engine: Engine, table: str = TABLE, why: str = "optimize: 38 small files", is_worth_it: bool = True) -> int:
    return windows.plan(engine, table, "ann", why, is_worth_it)


def store(home: Path, table: str, files: int = 3) -> None:
    for number in range(files):
        path = home / "lake" / table.replace(".", "/")
        write_deltalake(path, pyarrow.table({"number": [number]}), mode="append")


def test_without_a_window_it_says_so(ledger):
    assert ledger("windows") == "no window was planned yet\n"
    assert json.loads(ledger("windows", "--json")) == []


def test_windows_come_newest_first_and_of_one_table_where_one_is_named(engine, ledger):
    plan(engine, why="optimize: 38 small files")
    plan(engine, table=OTHER, why="nothing is worth it", is_worth_it=False)
    first, why, second, other_why = ledger("windows").splitlines()
    assert first.split()[0] == "2"
    assert "skipped" in first
    assert first.endswith(f"{OTHER}  by ann")
    assert "planned" in second
    assert second.endswith(f"{TABLE}  by ann")
    assert (why.strip(), other_why.strip()) == ("nothing is worth it", "optimize: 38 small files")
    assert OTHER not in ledger("windows", TABLE)
    assert TABLE not in ledger("windows", "--limit", "1")


def test_a_window_that_is_done_shows_what_it_changed_and_for_how_long_each_flow_stood_still(engine, ledger, hold_lease):
    number, epoch = plan(engine), hold_lease()
    windows.request(engine, number, TABLE, epoch)
    windows.open_(engine, number, BEFORE)
    windows.close(engine, number, AFTER)
    set_times(engine, number, 1_800_000_000.0, 1_800_000_012.3)
    with database.transaction(engine) as connection:
        windows.record_pause(connection, LockRequest(TABLE, TABLE, False), epoch, 1_800_000_004, 1_800_000_012.8)
    head, why, numbers, pause = ledger("windows").splitlines()
    assert head == f"   1  2027-01-15 08:00:00Z  done    {TABLE}  by ann"
    assert numbers.strip() == "files 40 -> 2, MB 12.0 -> 10.0, small 95% -> 0%, open for 12.3 s"
    assert pause.strip() == f"{TABLE} waited 8.8 s, 0.5 s of that while no window was open"
    [window] = json.loads(ledger("windows", "--json"))
    assert (window["state"], window["before"]["files"], window["after"]["files"]) == ("done", 40, 2)
    [pause_entry] = window["pauses"]
    assert (pause_entry["seconds"], pause_entry["beyond_seconds"]) == (pytest.approx(8.8), pytest.approx(0.5))


def test_a_window_that_failed_says_where_and_why(engine, ledger, hold_lease):
    number = plan(engine)
    windows.request(engine, number, TABLE, hold_lease())
    windows.open_(engine, number, BEFORE)
    windows.begin_step(engine, number, f"optimize {TABLE}")
    windows.close_unfinished(engine, number, "failed", "the disk is full: make room")
    head, why, step = ledger("windows").splitlines()
    assert "failed" in head
    assert why.strip() == "the disk is full: make room"
    assert step.strip() == f"ended at: optimize {TABLE}"


def test_a_window_whose_job_died_has_failed_and_says_so(engine, ledger, hold_lease):
    number = plan(engine)
    windows.request(engine, number, TABLE, hold_lease())
    windows.open_(engine, number, BEFORE)
    windows.begin_step(engine, number, f"vacuum {TABLE}")
    assert "open" in ledger("windows").splitlines()[0]
    with database.transaction(engine) as connection:
        connection.execute(update(leases).values(expires_at=database.now(connection) - 1))
    head, why, step = ledger("windows").splitlines()
    assert "failed" in head
    assert why.strip() == "optimize: 38 small files; its job died"
    assert step.strip() == f"ended at: vacuum {TABLE}"
    [window] = json.loads(ledger("windows", "--json"))
    assert window["state"] == "failed"


def test_the_plan_of_a_table_says_what_is_worth_it_and_who_holds_vacuum_back(ledger, tmp_path: Path):
    store(tmp_path, TABLE)
    store(tmp_path, QUARANTINE)
    lines = ledger("plan", TABLE).splitlines()
    kinds = ["merge", "optimize", "vacuum", "clean log"]
    for name in (TABLE, QUARANTINE):
        table_lines = [line.removeprefix(f"{name}: ") for line in lines if line.startswith(f"{name}: ")]
        assert [line.partition(":")[0] for line in table_lines[:4]] == [f"not worth it, {kind}" for kind in kinds]
        assert table_lines[4].startswith("compacted in a window: ")
        assert table_lines[-1] == (
            "VACUUM keeps what was deleted in the last 608,400 s; "
            "the oldest version needed is 0, by the promised time travel of 168 hours"
        )
    assert lines == ledger("plan", QUARANTINE).splitlines(), "an alarm names the quarantine by its own name"


def test_the_plan_as_json_has_each_step_with_its_numbers(ledger, tmp_path: Path):
    store(tmp_path, TABLE)
    [document] = json.loads(ledger("plan", TABLE, "--json"))
    assert document["table"] == TABLE
    assert [step["kind"] for step in document["steps"]] == ["merge", "optimize", "vacuum", "clean log"]
    assert document["steps"][1]["numbers"]["small_files"] == 3
    assert document["retention_seconds"] == 608_400
    assert document["held_by"]["version"] == 0


def test_a_table_that_is_not_stored_has_no_plan_and_an_unknown_one_is_refused(ledger):
    assert ledger("plan", TABLE) == f"{TABLE} is not stored yet\n"
    assert json.loads(ledger("plan", TABLE, "--json")) == []
    assert "did you mean 'silver.tracker_readings'?" in ledger("plan", "silver.tracker_reading", exit_code=2)


def test_a_hold_counts_until_it_is_released(engine, ledger, tmp_path: Path):
    store(tmp_path, TABLE)
    output = ledger("hold", TABLE, "--version", "1", "--hours", "48", "--name", "report")
    assert output == f"{TABLE} keeps version 1 and every later one for report, for 48 h from now on\n"
    [(name, version, _)] = vacuum_holds.registered(engine, TABLE)
    assert (name, version) == ("report", 1)
    assert ledger("release-hold", TABLE, "--name", "report") == f"{TABLE} keeps nothing for report any more\n"
    assert vacuum_holds.registered(engine, TABLE) == []
    second_output = ledger("release-hold", TABLE, "--name", "report")
    assert second_output == f"nothing done, {TABLE} keeps nothing for report\n"


def test_the_quarantine_of_a_table_can_be_held_too(engine, ledger, tmp_path: Path):
    store(tmp_path, QUARANTINE)
    ledger("hold", QUARANTINE, "--version", "2", "--hours", "1", "--name", "report")
    assert vacuum_holds.registered(engine, QUARANTINE)


@pytest.mark.parametrize(
    ("table", "version", "hours", "exit_code", "sentence"),
    [
        ("silver.tracker_reading", "1", "48", 2, "did you mean 'silver.tracker_readings'?"),
        (TABLE, "3", "48", 2, f"--version is 3, and the log of {TABLE} holds 0 to 2: name one of these"),
        (TABLE, "1", "-1", 2, "--hours is -1: set it to a number above 0"),
        (TABLE, "1", "inf", 2, "--hours is inf: set it to a number above 0"),
        (OTHER, "1", "48", 4, "holds no Delta log: start the flow that writes the table first"),
    ],
)
def test_a_hold_that_would_hold_nothing_is_refused(
    engine, ledger, tmp_path: Path, table: str, version: str, hours: str, exit_code: int, sentence: str
):
    store(tmp_path, TABLE)
    options = ["--version", version, "--hours", hours, "--name", "report"]
    assert sentence in ledger("hold", table, *options, exit_code=exit_code)
    assert vacuum_holds.registered(engine, table) == []
