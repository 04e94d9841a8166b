"""Windows that a running driver is asked for: its flows wait at their gates, and go on whatever comes of it."""

from dataclasses import replace

import pytest
from sqlalchemy import Engine

from include.control import commands
from include.control.commands import Action, Command
from include.control.jobs import window_queue, windows
from include.engine.tables import maintain
from include.ledger import verify
from include.readers.delta_log import DeltaLog
from include.settings import settings
from include.spec import Maintenance, Table
from tests.support.flows import Chain, rows_of, wait_for_rows
from tests.support.waiting import wait_until

SOURCE = "value BINARY, partition INT, offset BIGINT"
MANY = 12


@pytest.fixture
def bring(name, append):
    """A number that reaches what silver reads, in a commit of its own."""

    def bring(number: int) -> None:
        append(f"bronze.{name}", [{"value": str(number).encode(), "partition": 0, "offset": number}], SOURCE)

    return bring


@pytest.fixture
def silver(name, bring) -> Table:
    """Of many small files, with no topic behind them."""
    for number in range(MANY):
        bring(number)
    silver = Chain(name, None).silver
    keep = Maintenance(target_file_mb=0.01, time_travel_hours=0.0001)
    return replace(silver, source=replace(silver.source, max_files=1), maintain=keep, interval_seconds=0.1)


def ask(engine: Engine, table: Table, driver: str) -> int:
    number = windows.plan(engine, table.name, "a test", "a test", is_worth_it=True)
    assert window_queue.request(engine, number, driver)
    return number


def outcome(engine: Engine, number: int) -> windows.Window:
    """Once it is over."""

    def is_over() -> bool:
        now = window_queue.status(engine, number)
        return now.is_done or now.failure is not None

    wait_until(is_over, 120, lambda: window_queue.status(engine, number).said)
    found = windows.find(engine, number)
    assert found
    return found


def test_a_driver_opens_the_windows_it_is_asked_for_and_its_flows_go_on(silver, bring, driver, engine):
    with driver(silver) as running:
        wait_for_rows(silver, MANY)
        first, second = ask(engine, silver, running.name), ask(engine, silver, running.name)
        window = outcome(engine, first)
        assert (window.state, window.before.files, window.after.files) == ("done", MANY, 1)
        assert outcome(engine, second).state == "done"
        bring(MANY)
        wait_for_rows(silver, MANY + 1)
        assert running.error is None
    assert sorted(row["number"] for row in rows_of(silver.name)) == list(range(MANY + 1))
    verify.verify(silver)


def test_a_window_that_fails_leaves_the_driver_alone(silver, bring, driver, engine, monkeypatch):
    def fail(*given) -> None:
        raise OSError("the disk is gone")

    with driver(silver) as running:
        wait_for_rows(silver, MANY)
        with monkeypatch.context() as patched:
            patched.setattr(maintain, "compact", fail)
            window = outcome(engine, ask(engine, silver, running.name))
            assert (window.state, "the disk is gone" in window.why) == ("failed", True)
        bring(MANY)
        wait_for_rows(silver, MANY + 1)
        assert outcome(engine, ask(engine, silver, running.name)).state == "done"
        assert running.error is None


def test_a_driver_that_is_to_end_leaves_its_window_to_its_successor(silver, driver, engine, monkeypatch):
    def last(spark, *given) -> None:
        spark.range(600).selectExpr("reflect('java.lang.Thread', 'sleep', 1000L)").collect()

    with driver(silver) as running:
        wait_for_rows(silver, MANY)
        with monkeypatch.context() as patched:
            patched.setattr(maintain, "compact", last)
            number = ask(engine, silver, running.name)
            wait_until(lambda: windows.find(engine, number).state == "open", 60)
            commands.execute(engine, Command(Action.RESTART, (silver.flow,), "test", "a test", driver=running.name))
            running.thread.join(60)
            assert not running.thread.is_alive()
            assert running.error is None
    commands.execute(engine, Command(Action.START, (silver.flow,), "test", "a test"))
    with driver(silver) as successor:
        wait_until(lambda: windows.find(engine, number).state == "done", 60)
        assert successor.error is None
    assert len(DeltaLog(settings().table_path(silver.name)).state.live) == 1


def test_what_nobody_else_can_have_begun_may_be_withdrawn_once(name, engine):
    number = windows.plan(engine, f"silver.{name}", "a test", "a test", is_worth_it=True)
    assert not window_queue.request(engine, number, "nobody"), "no such driver lives"
    window_queue.hand_back(engine, number, "nobody")
    assert window_queue.claim(engine, number)
    assert not window_queue.claim(engine, number)


def test_a_window_whose_driver_died_is_told_so(name, engine):
    number = windows.plan(engine, f"silver.{name}", "a test", "many files", is_worth_it=True)
    windows.request(engine, number, f"silver.{name}", 1)
    assert window_queue.status(engine, number).failure == "many files; its job died"
