"""Backfills run beside live streams, and their jobs are killed at each phase."""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest

from include.control.jobs import backfills, stale_rows, store
from include.control.jobs.backfills import Backfill
from include.delta.delta_log import DeltaLog
from include.examples.events import events
from include.lake import locations
from include.spec import Table
from tests.support.backfills import Backfills
from tests.support.flows import Chain, has_rows, only_in_full_runs
from tests.support.jobs.process import Job
from tests.support.pipeline import TABLES
from tests.support.producing import produce_numbers, produce_repeatedly
from tests.support.waiting import wait_until


@only_in_full_runs
def test_a_backfill_beside_a_live_stream_loses_and_doubles_nothing(chain, driver, spark):
    chain.topic.create(2)
    tables = chain.in_slices
    _, silver, gold = tables
    with driver(*tables) as running_driver:
        with produce_numbers(chain.topic, 20, 0.1):
            wait_until(lambda: has_rows(gold), 300)
            completed = Backfills(spark, tables).run(silver, 60, 180)
            assert [backfill.table for backfill in completed] == [gold.name, silver.name]
            assert all(
                backfill.outcome["rows_after"] == backfill.outcome["rows_before"] or backfill.table == gold.name
                for backfill in completed
            )
            assert completed[1].outcome["rows_after"]
            version_before = DeltaLog(locations.table_path(gold.name)).newest
            wait_until(lambda: DeltaLog(locations.table_path(gold.name)).newest > version_before + 2, 120)
        chain.assert_all_arrives(tables)
        assert running_driver.error is None


@only_in_full_runs
def test_backfills_beside_a_stream_of_a_thousand_events_a_second_lose_and_double_nothing(
    chain, driver, spark, engine, tmp_path
):
    """No table removes duplicates, so a duplicate row is visible."""
    chain.topic.create(2)
    tables = chain.in_slices
    _, silver, gold = tables
    with driver(*tables) as running_driver:
        with produce_numbers(chain.topic, 250, 0.25) as stats:
            wait_until(lambda: has_rows(gold), 300)
            for begin in (0, 60, 300):
                backfill_job = job(chain, tmp_path, begin, begin + 120)
                assert backfill_job.wait() == 0, backfill_job.log.read_text()
                Backfills(spark, tables).run(gold, begin, begin + 60)
        assert stats.per_second() > 990
        chain.assert_all_arrives(tables)
        assert running_driver.error is None
    assert all(
        backfill.state == "done" for table in (silver, gold) for backfill in store.newest(engine, Backfill, table.name)
    )


@only_in_full_runs
def test_the_shipped_jobs_backfill_silver_beside_a_thousand_events_a_second_and_lose_and_double_nothing(pipeline):
    _, silver, gold = TABLES
    # Event time advances at the speed of wall-clock time, so the range still grows during its backfill.
    event_stream = events(seed=7, count=10**9, start=datetime(2026, 3, 1, 12, tzinfo=UTC), per_second=1_000)
    driver, producer = pipeline.submit(), pipeline.producer()
    with produce_repeatedly(lambda _: pipeline.produce(islice(event_stream, 250), producer), 250, 0.25) as stats:
        wait_until(pipeline.gold, 240, pipeline.log.read_text)
        # The first range begins with the 30,000th event.
        wait_until(lambda: pipeline.count(silver) > 45_000, 240, pipeline.log.read_text)
        for begin, end in (("2026-03-01T12:00:30", "2026-03-01T12:59"), ("2026-03-01T12:00", "2026-03-01T12:02:30")):
            rows_before, started_at = pipeline.count(silver), time.monotonic()
            result = pipeline.backfill("--table", silver, "--from", begin, "--to", end)
            ended_at = time.monotonic()
            assert result.returncode == 0, result.stdout
            assert stats.per_second(started_at, ended_at) > 990
            assert pipeline.count(silver) > rows_before + 5_000, "its flow went on"
            commits_before = pipeline.commits(gold)
            wait_until(
                lambda commits_before=commits_before: pipeline.commits(gold) > commits_before + 2,
                120,
                pipeline.log.read_text,
            )
    assert stats.per_second() > 990
    newest_backfills = store.newest(pipeline.control, Backfill)
    assert [(backfill.table, backfill.state) for backfill in newest_backfills] == [(gold, "done"), (silver, "done")] * 2
    assert all(
        backfill.outcome["rows_after"] == backfill.outcome["rows_before"] > 10_000
        for backfill in newest_backfills
        if backfill.table == silver
    )
    pipeline.wait_until_gold_is_right(timeout_seconds=300)
    assert driver.poll() is None
    pipeline.assert_nothing_lost_or_doubled()
    pipeline.assert_the_ledger_agrees()


def job(chain: Chain, home: Path, begin: int = 60, end: int = 180) -> Job:
    bounds = [datetime.fromtimestamp(seconds, UTC).isoformat() for seconds in (begin, end)]
    return Job(home, "tests.support.jobs.backfill", chain.name, chain.topic.name, chain.in_slices[1].name, *bounds)


def newest(engine, table: Table) -> Backfill | None:
    return next(iter(store.newest(engine, Backfill, table.name, 1)), None)


def in_phase(phase: str, index: int = 1) -> Callable:
    def condition(engine, tables) -> Callable[[], bool]:
        return lambda: (backfill := newest(engine, tables[index])) is not None and backfill.state == phase

    return condition


def has_committed() -> Callable:
    def condition(_engine, tables) -> Callable[[], bool]:
        path = locations.table_path(tables[1].name)
        version_before = DeltaLog(path).newest

        def has_backfill_commit() -> bool:
            with suppress(Exception):
                log = DeltaLog(path)
                return any("backfill" in log.commit(version).metadata for version in log.after(version_before))
            return False

        return has_backfill_commit

    return condition


MOMENTS = {
    "it-makes-the-rows": in_phase(backfills.COMPUTING),
    "it-waits-for-its-window": in_phase(backfills.WAITING),
    "readers-are-stopped": in_phase(backfills.DRAINING),
    "it-begins-to-replace": in_phase(backfills.REPLACING),
    "the-range-is-replaced": has_committed(),
    "the-aggregate-waits": in_phase(backfills.WAITING, 2),
    "the-aggregate-is-replaced": in_phase(backfills.REPLACING, 2),
}


@only_in_full_runs
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_job_that_is_killed_is_ended_by_the_next_and_nothing_is_lost_or_doubled(
    chain, driver, engine, tmp_path, moment
):
    chain.topic.create(2)
    tables = chain.in_slices
    _, silver, gold = tables
    with driver(*tables) as running_driver:
        with produce_numbers(chain.topic, 20, 0.2):
            wait_until(lambda: has_rows(gold), 300)
            job(chain, tmp_path).kill_when(MOMENTS[moment](engine, tables))
            second_job = job(chain, tmp_path)
            assert second_job.wait() == 0, second_job.log.read_text()
        for table in (silver, gold):
            assert all(backfill.state == "done" for backfill in store.newest(engine, Backfill, table.name)), (
                second_job.log.read_text()
            )
        chain.assert_all_arrives(tables)
        assert running_driver.error is None
    assert [stale_table for stale_table in stale_rows.stale_ranges(engine) if stale_table.table == gold.name] == []
