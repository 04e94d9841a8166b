"""A running driver executes requested backfills beside its flows. The flows continue even if a backfill fails."""

import os
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from include import catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows.queue import JobStatus
from include.control.jobs import all_kinds, backfills, stale_rows, store
from include.control.jobs.backfills import Backfill
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database, job_id
from include.delta.delta_log import DeltaLog
from include.engine.jobs import job_runner, replacement
from include.engine.jobs.backfill import BackfillJob
from include.engine.jobs.worker import Worker
from include.engine.stream.driver import jvm_pid
from include.errors import Unreachable
from include.lake import locations
from include.ledger import verify
from include.project import ranges
from include.rules import Expect
from include.settings import settings
from include.spec import Table
from tests.support.backfills import Killed
from tests.support.flows import Chain, has_rows, only_in_full_runs, rows_of, wait_for_rows
from tests.support.pipeline import random_events
from tests.support.producing import produce_numbers
from tests.support.waiting import wait_until

SOURCE = "value BINARY, partition INT, offset BIGINT"


def request_backfill(engine: Engine, table: Table, driver: str, begin: int, end: int) -> int | None:
    """Request a backfill from the driver. begin, end: minutes of 1970-01-01."""
    time_range = ranges.parse_slice(table, *(f"1970-01-01T00:{minute:02}:00" for minute in (begin, end)))
    return backfills.request(engine, table.name, time_range, "a test", driver)


def wait_for_outcome(engine: Engine, number: int) -> JobStatus:
    """Wait until the backfill succeeds or fails, and return its status."""

    def has_ended() -> bool:
        status = all_kinds.status(engine, job_id.backfill(number))
        return status.is_done or status.failure is not None

    wait_until(has_ended, 120, lambda: all_kinds.status(engine, job_id.backfill(number)).message)
    return all_kinds.status(engine, job_id.backfill(number))


def backfills_of_root(engine: Engine, number: int) -> list[Backfill]:
    return [entry for entry in store.newest(engine, Backfill) if entry.root == number]


@pytest.fixture
def silver(name, append) -> Table:
    """A silver table with 40 numbers in the first ten minutes. Its source has no topic."""
    silver = Chain(name, None).silver
    rows = [{"value": str(n * 15).encode(), "partition": 0, "offset": n} for n in range(40)]
    append(silver.source.table, rows, SOURCE)
    return replace(silver, time_column="time", interval_seconds=0.1)


@pytest.fixture
def stranger(engine) -> Iterator[LeaseRenewer]:
    """Another process that holds leases."""
    lease_renewer = LeaseRenewer(engine, Holder.here("stranger", jvm_pid()), 60, lambda reason: os.abort())
    lease_renewer.start()
    yield lease_renewer
    lease_renewer.stop()


def test_a_driver_does_what_it_is_asked_for_one_after_the_other_while_its_streams_go_on(chain, driver, engine):
    chain.topic.create(2)
    tables = chain.in_slices
    _, silver, gold = tables
    with driver(*tables) as running_driver:
        with produce_numbers(chain.topic, 20, 0.5):
            wait_until(lambda: has_rows(gold), 120)
            first, second = (
                request_backfill(engine, silver, running_driver.name, 1, 3),
                request_backfill(engine, silver, running_driver.name, 5, 6),
            )
            version_before = DeltaLog(locations.table_path(f"bronze.{chain.name}")).newest
            assert wait_for_outcome(engine, first).is_done
            assert DeltaLog(locations.table_path(f"bronze.{chain.name}")).newest > version_before
            assert wait_for_outcome(engine, second).is_done
        completed = sorted(
            backfills_of_root(engine, first) + backfills_of_root(engine, second), key=lambda entry: entry.ended_at
        )
        assert [(entry.root, entry.table) for entry in completed] == [
            (root, table.name) for root in (first, second) for table in (silver, gold)
        ]
        assert all(
            entry.outcome["rows_before"] == entry.outcome["rows_after"] > 0
            for entry in completed
            if entry.table == silver.name
        )
        chain.assert_all_arrives(tables)
        assert running_driver.error is None
    assert [stale_table for stale_table in stale_rows.stale_ranges(engine) if stale_table.table == gold.name] == []


@only_in_full_runs
def test_a_backfill_that_fails_leaves_the_driver_alone_and_is_done_once_it_is_mended(silver, append, driver, engine):
    with driver(silver) as running_driver:
        wait_for_rows(silver, 40)
        running_driver.change(silver, expect=(Expect("is_small", "number < 100", otherwise="fail"),))
        number = request_backfill(engine, silver, running_driver.name, 0, 10)
        assert "is_small" in wait_for_outcome(engine, number).failure
        append(silver.source.table, [{"value": b"1", "partition": 0, "offset": 40}], SOURCE)
        wait_for_rows(silver, 41)
        running_driver.change(silver)
        assert request_backfill(engine, silver, running_driver.name, 0, 10) == number
        assert wait_for_outcome(engine, number).is_done
        assert running_driver.error is None
    verify.verify(silver)


def test_its_own_flows_wait_for_its_window_and_a_driver_without_flows_stays_until_it_is_done(
    silver, append, driver, engine, monkeypatch
):
    replace_table = replacement.replace_table

    def replace_and_check(*arguments) -> None:
        flow, version = running_driver.host._flows[silver.flow], DeltaLog(locations.table_path(silver.name)).newest
        polls_before = flow._gate_polls
        append(silver.source.table, [{"value": b"1", "partition": 0, "offset": 40}], SOURCE)
        wait_until(lambda: flow._gate_polls > polls_before + 5, 60)
        assert DeltaLog(locations.table_path(silver.name)).newest == version, "its flow has written in its window"
        commands.execute(engine, Command(Action.STOP, (silver.flow,), "test", "a test"))
        wait_until(lambda: running_driver.query(silver) is None, 60)
        running_driver.thread.join(3)
        assert running_driver.thread.is_alive(), "the driver has ended in the middle"
        replace_table(*arguments)

    with driver(silver) as running_driver:
        wait_for_rows(silver, 40)
        monkeypatch.setattr(replacement, "replace_table", replace_and_check)
        assert wait_for_outcome(engine, request_backfill(engine, silver, running_driver.name, 1, 3)).is_done
        running_driver.thread.join(60)
        assert not running_driver.thread.is_alive()
        assert running_driver.error is None
    verify.verify(silver)


@only_in_full_runs
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_what_died_in_the_middle_is_taken_up_once_more_and_then_left_to_a_process_of_its_own(
    silver, name, append, driver, engine, monkeypatch
):
    kills = []

    def die(*_) -> None:
        kills.append(1)
        raise Killed

    gold = replace(Chain(name, None).gold, interval_seconds=0.1)
    with driver(silver, gold) as running_driver:
        wait_for_rows(gold, 10)
        with monkeypatch.context() as patch:
            patch.setattr(replacement, "replace_table", die)
            number = request_backfill(engine, silver, running_driver.name, 1, 3)
            assert "do it in a process of its own" in wait_for_outcome(engine, number).failure
            assert len(kills) == BackfillJob.MOST_TRIES
        assert request_backfill(engine, silver, running_driver.name, 1, 3) == number
        assert wait_for_outcome(engine, number).is_done
        append(silver.source.table, [{"value": b"1", "partition": 0, "offset": 40}], SOURCE)
        wait_until(lambda: sum(row["rows"] for row in rows_of(gold.name)) == 41, 60)
        assert running_driver.error is None


@only_in_full_runs
def test_a_driver_that_is_to_end_leaves_a_backfill_to_its_successor(silver, driver, engine, stranger):
    with driver(silver) as running_driver:
        wait_for_rows(silver, 40)
        # The driver cannot get the window, so it ends in the middle of the backfill.
        stranger.take([lease.window_lease(silver.name)])
        number = request_backfill(engine, silver, running_driver.name, 1, 3)
        wait_until(lambda: store.get(engine, Backfill, number).state == backfills.WAITING, 60)
        commands.execute(engine, Command(Action.RESTART, (silver.flow,), "test", "a test", driver=running_driver.name))
        running_driver.thread.join(60)
        assert not running_driver.thread.is_alive()
        assert running_driver.error is None
    assert not all_kinds.status(engine, job_id.backfill(number)).is_in_hand
    stranger.give_back([lease.window_lease(silver.name)])
    commands.execute(engine, Command(Action.START, (silver.flow,), "test", "a test"))
    with driver(silver) as successor:
        assert wait_for_outcome(engine, number).is_done
        assert successor.error is None
    assert len(backfills_of_root(engine, number)) == 1


@only_in_full_runs
def test_a_window_that_lasts_too_long_ends_the_backfill_and_not_the_driver(silver, driver, engine, monkeypatch):
    def run(_job: BackfillJob, worker: Worker, entry: Backfill) -> None:
        store.enter(engine, entry, backfills.REPLACING, "for ever")
        threading.Timer(1, worker.halt, ["its window lasts too long"]).start()
        worker.spark.range(600).selectExpr("reflect('java.lang.Thread', 'sleep', 1000L)").collect()

    with driver(silver) as running_driver:
        wait_for_rows(silver, 40)
        with monkeypatch.context() as patch:
            patch.setattr(BackfillJob, "run", run)
            number = request_backfill(engine, silver, running_driver.name, 1, 3)
            assert wait_for_outcome(engine, number).failure == "its window lasts too long"
        assert request_backfill(engine, silver, running_driver.name, 1, 3) == number
        assert wait_for_outcome(engine, number).is_done
        assert running_driver.query(silver).isActive


MOMENTS = (backfills.COMPUTING, backfills.DRAINING, backfills.REPLACING)


@only_in_full_runs
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_driver_that_is_killed_in_the_middle_is_followed_by_one_that_ends_it(pipeline, moment):
    table = catalog.load().table("silver.tracker_readings")
    pipeline.produce(random_events(1, count=500))
    pipeline.submit()
    pipeline.wait_until_gold_is_right()
    time_range = ranges.parse_slice(table, "2026-03-01T12:00", "2026-03-01T13:00")
    number = backfills.request(pipeline.control, table.name, time_range, "a test", table.driver)

    def has_reached_moment() -> bool:
        if store.get(pipeline.control, Backfill, number).state == moment:
            return True
        assert not all_kinds.status(pipeline.control, job_id.backfill(number)).is_done, "it was over before it was seen"
        return False

    # A phase may last less than 0.2 s.
    wait_until(has_reached_moment, 180, poll_seconds=0.01)
    pipeline.kill(pipeline.submitted[-1], "both")
    assert not all_kinds.status(pipeline.control, job_id.backfill(number)).is_done
    pipeline.produce(random_events(2, count=500))
    pipeline.submit()
    assert wait_for_outcome(pipeline.control, number).is_done
    pipeline.wait_until_gold_is_right()
    pipeline.assert_nothing_lost_or_doubled()
    assert [entry.state for entry in store.newest(pipeline.control, Backfill)] == ["done", "done"]


def test_a_driver_that_ends_does_not_wait_for_the_outcome_of_a_job_that_took_too_long(spark, monkeypatch):
    """The control database is away, so that the outcome cannot be stored."""
    halted, is_away = [], threading.Event()
    monkeypatch.setattr(job_runner, "END_SECONDS", 5)
    monkeypatch.setattr(job_runner.driver, "halt", lambda *reason: halted.append(reason))
    runner = job_runner.JobRunner(spark, database.connect(settings().control_url), "test")

    def store() -> None:
        is_away.set()
        raise Unreachable("the control database is away")

    runner._overrun = "it took too long"
    runner._thread = threading.Thread(target=runner._record, args=[store], daemon=True)
    runner._thread.start()
    assert is_away.wait(10)
    runner.end()
    assert not halted
    assert not runner._thread.is_alive()
