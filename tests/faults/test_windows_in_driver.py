"""A running driver opens requested windows. Its flows wait, and continue even if the window fails."""

from dataclasses import replace

import pytest
from sqlalchemy import Engine

from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import queue
from include.control.jobs import all_kinds, store, windows
from include.control.jobs.windows import Window
from include.control.store import job_id
from include.delta.delta_log import DeltaLog
from include.engine.tables import maintain
from include.lake import locations
from include.ledger import verify
from include.spec import Maintenance, Table
from tests.support.flows import Chain, rows_of, wait_for_rows
from tests.support.waiting import wait_until

SOURCE = "value BINARY, partition INT, offset BIGINT"
FILE_COUNT = 12


@pytest.fixture
def bring(name, append):
    """`bring(5)` appends the number 5 to the source of silver, in its own commit."""

    def append_number(number: int) -> None:
        append(f"bronze.{name}", [{"value": str(number).encode(), "partition": 0, "offset": number}], SOURCE)

    return append_number


@pytest.fixture
def silver(name, bring) -> Table:
    """A silver table with many small files. Its source has no topic."""
    for number in range(FILE_COUNT):
        bring(number)
    silver = Chain(name, None).silver
    policy = Maintenance(target_file_mb=0.01, time_travel_hours=0.0001)
    return replace(silver, source=replace(silver.source, max_files=1), maintain=policy, interval_seconds=0.1)


def request_window(engine: Engine, table: Table, driver: str) -> int:
    number = windows.plan(engine, table.name, "a test", "a test", is_worth_it=True)
    assert queue.request(engine, job_id.window(number), driver)
    return number


def wait_for_outcome(engine: Engine, number: int) -> windows.Window:
    """Wait until the window succeeds or fails, and return it."""

    def has_ended() -> bool:
        status = all_kinds.status(engine, job_id.window(number))
        return status.is_done or status.failure is not None

    wait_until(has_ended, 120, lambda: all_kinds.status(engine, job_id.window(number)).message)
    window = store.get(engine, Window, number)
    assert window
    return window


def test_a_driver_opens_the_windows_it_is_asked_for_and_its_flows_go_on(silver, bring, driver, engine):
    with driver(silver) as running_driver:
        wait_for_rows(silver, FILE_COUNT)
        first, second = (
            request_window(engine, silver, running_driver.name),
            request_window(engine, silver, running_driver.name),
        )
        window = wait_for_outcome(engine, first)
        assert (window.state, window.before.files, window.after.files) == ("done", FILE_COUNT, 1)
        assert wait_for_outcome(engine, second).state == "done"
        bring(FILE_COUNT)
        wait_for_rows(silver, FILE_COUNT + 1)
        assert running_driver.error is None
    assert sorted(row["number"] for row in rows_of(silver.name)) == list(range(FILE_COUNT + 1))
    verify.verify(silver)


def test_a_window_that_fails_leaves_the_driver_alone(silver, bring, driver, engine, monkeypatch):
    def fail(*arguments) -> None:
        raise OSError("the disk is gone")

    with driver(silver) as running_driver:
        wait_for_rows(silver, FILE_COUNT)
        with monkeypatch.context() as patch:
            patch.setattr(maintain, "compact", fail)
            window = wait_for_outcome(engine, request_window(engine, silver, running_driver.name))
            assert (window.state, "the disk is gone" in window.reason) == ("failed", True)
        bring(FILE_COUNT)
        wait_for_rows(silver, FILE_COUNT + 1)
        assert wait_for_outcome(engine, request_window(engine, silver, running_driver.name)).state == "done"
        assert running_driver.error is None


def test_a_driver_that_is_to_end_leaves_its_window_to_its_successor(silver, driver, engine, monkeypatch):
    def run_slowly(spark, *arguments) -> None:
        spark.range(600).selectExpr("reflect('java.lang.Thread', 'sleep', 1000L)").collect()

    with driver(silver) as running_driver:
        wait_for_rows(silver, FILE_COUNT)
        with monkeypatch.context() as patch:
            patch.setattr(maintain, "compact", run_slowly)
            number = request_window(engine, silver, running_driver.name)
            wait_until(lambda: store.get(engine, Window, number).state == "open", 60)
            commands.execute(
                engine, Command(Action.RESTART, (silver.flow,), "test", "a test", driver=running_driver.name)
            )
            running_driver.thread.join(60)
            assert not running_driver.thread.is_alive()
            assert running_driver.error is None
    commands.execute(engine, Command(Action.START, (silver.flow,), "test", "a test"))
    with driver(silver) as successor:
        wait_until(lambda: store.get(engine, Window, number).state == "done", 60)
        assert successor.error is None
    assert len(DeltaLog(locations.table_path(silver.name)).state.live) == 1


def test_a_window_whose_driver_died_is_told_so(name, engine):
    number = windows.plan(engine, f"silver.{name}", "a test", "many files", is_worth_it=True)
    windows.request(engine, number, f"silver.{name}", 1)
    assert all_kinds.status(engine, job_id.window(number)).failure == "many files; its job died"
