"""Backfills beside streams that go on, and jobs that are killed in the middle of one."""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import pytest

from include.control.jobs import backfills, stale_tables
from include.control.jobs.backfills import Backfill
from include.examples.events import events
from include.readers.delta_log import DeltaLog
from include.settings import settings
from include.spec import Table
from tests.support.backfills import Backfills
from tests.support.flows import Chain, has_rows, only_in_full_runs
from tests.support.jobs import Job
from tests.support.pipeline import TABLES
from tests.support.producing import flowing, producing
from tests.support.waiting import wait_until


@only_in_full_runs
def test_a_backfill_beside_a_live_stream_loses_and_doubles_nothing(chain, driver, spark):
    chain.topic.create(2)
    tables = chain.in_slices
    _, silver, gold = tables
    with driver(*tables) as running:
        with flowing(chain.topic, 20, 0.1):
            wait_until(lambda: has_rows(gold), 300)
            done = Backfills(spark, tables).run(silver, 60, 180)
            assert [one.table for one in done] == [gold.name, silver.name]
            assert all(one.rows_after == one.rows_before or one.table == gold.name for one in done)
            assert done[1].rows_after
            seen = DeltaLog(settings().table_path(gold.name)).newest
            wait_until(lambda: DeltaLog(settings().table_path(gold.name)).newest > seen + 2, 120)
        chain.assert_all_arrives(tables)
        assert running.error is None


@only_in_full_runs
def test_backfills_beside_a_stream_of_a_thousand_events_a_second_lose_and_double_nothing(
    chain, driver, spark, engine, tmp_path
):
    """Where nothing removes doubles, so that each would show."""
    chain.topic.create(2)
    tables = chain.in_slices
    _, silver, gold = tables
    with driver(*tables) as running:
        with flowing(chain.topic, 250, 0.25) as sent:
            wait_until(lambda: has_rows(gold), 300)
            for begin in (0, 60, 300):
                one = job(chain, tmp_path, begin, begin + 120)
                assert one.wait() == 0, one.log.read_text()
                Backfills(spark, tables).run(gold, begin, begin + 60)
        assert sent.per_second() > 990
        chain.assert_all_arrives(tables)
        assert running.error is None
    assert all(one.phase == "done" for table in (silver, gold) for one in backfills.newest(engine, table.name))


@only_in_full_runs
def test_the_shipped_jobs_backfill_silver_beside_a_thousand_events_a_second_and_lose_and_double_nothing(pipeline):
    _, silver, gold = TABLES
    # Time goes on as it does, so that the range fills up while it is made again.
    story = events(seed=7, count=10**9, start=datetime(2026, 3, 1, 12, tzinfo=UTC), per_second=1_000)
    driver, producer = pipeline.submit(), pipeline.producer()
    with producing(lambda _: pipeline.produce(islice(story, 250), producer), 250, 0.25) as sent:
        wait_until(pipeline.gold, 240, pipeline.log.read_text)
        for begin, end in (("2026-03-01T12:00:30", "2026-03-01T12:59"), ("2026-03-01T12:00", "2026-03-01T12:02:30")):
            before, since = pipeline.count(silver), time.monotonic()
            done = pipeline.backfill("--table", silver, "--from", begin, "--to", end)
            until = time.monotonic()
            assert done.returncode == 0, done.stdout
            assert sent.per_second(since, until) > 990
            assert pipeline.count(silver) > before + 5_000, "its flow went on"
            seen = pipeline.commits(gold)
            wait_until(lambda seen=seen: pipeline.commits(gold) > seen + 2, 120, pipeline.log.read_text)
    assert sent.per_second() > 990
    found = backfills.newest(pipeline.control)
    assert [(one.table, one.phase) for one in found] == [(gold, "done"), (silver, "done")] * 2
    assert all(one.rows_after == one.rows_before > 10_000 for one in found if one.table == silver)
    pipeline.wait_until_gold_is_right(timeout_seconds=300)
    assert driver.poll() is None
    pipeline.assert_nothing_lost_or_doubled()
    pipeline.assert_the_ledger_agrees()


def job(chain: Chain, home: Path, begin: int = 60, end: int = 180) -> Job:
    texts = [datetime.fromtimestamp(one, UTC).isoformat() for one in (begin, end)]
    return Job(home, "tests.support.backfill_job", chain.name, chain.topic.name, chain.in_slices[1].name, *texts)


def newest(engine, table: Table) -> Backfill | None:
    return next(iter(backfills.newest(engine, table.name, 1)), None)


def is_in(phase: str, which: int = 1) -> Callable:
    def look(engine, tables) -> Callable[[], bool]:
        return lambda: (found := newest(engine, tables[which])) is not None and found.phase == phase

    return look


def has_committed() -> Callable:
    def look(_engine, tables) -> Callable[[], bool]:
        path = settings().table_path(tables[1].name)
        before = DeltaLog(path).newest

        def is_there() -> bool:
            with suppress(Exception):
                log = DeltaLog(path)
                return any("backfill" in log.commit(one).metadata for one in log.after(before))
            return False

        return is_there

    return look


MOMENTS = {
    "it-makes-the-rows": is_in(backfills.COMPUTING),
    "it-waits-for-its-window": is_in(backfills.WAITING),
    "readers-are-stopped": is_in(backfills.DRAINING),
    "it-begins-to-replace": is_in(backfills.REPLACING),
    "the-range-is-replaced": has_committed(),
    "the-aggregate-waits": is_in(backfills.WAITING, 2),
    "the-aggregate-is-replaced": is_in(backfills.REPLACING, 2),
}


SHORT = "it-begins-to-replace"


@pytest.mark.parametrize(
    "moment", [SHORT, *(pytest.param(one, marks=only_in_full_runs) for one in MOMENTS if one != SHORT)]
)
def test_a_job_that_is_killed_is_ended_by_the_next_and_nothing_is_lost_or_doubled(
    chain, driver, engine, tmp_path, moment
):
    chain.topic.create(2)
    tables = chain.in_slices
    _, silver, gold = tables
    with driver(*tables) as running:
        with flowing(chain.topic, 20, 0.2):
            wait_until(lambda: has_rows(gold), 300)
            job(chain, tmp_path).kill_when(MOMENTS[moment](engine, tables))
            second = job(chain, tmp_path)
            assert second.wait() == 0, second.log.read_text()
        for table in (silver, gold):
            assert all(one.phase == "done" for one in backfills.newest(engine, table.name)), second.log.read_text()
        chain.assert_all_arrives(tables)
        assert running.error is None
    assert [one for one in stale_tables.list_all(engine) if one.table == gold.name] == []
