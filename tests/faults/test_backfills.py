"""Backfills beside streams that go on, and jobs that are killed in the middle of one."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from include.control import backfills, stale
from include.control.backfills import Backfill
from include.ledger import verification
from include.ledger.log import Log
from include.settings import settings
from include.spec import Table
from tests.backfills import Backfills
from tests.flows import Chain, has_rows, is_long, only_in_full_runs, rows_of, wait_for_rows
from tests.jobs import Job
from tests.pipeline import wait_until
from tests.topic import producing

BEGIN, END = "1970-01-01T00:01:00", "1970-01-01T00:03:00"


def assert_all_arrives(chain: Chain, tables: tuple[Table, ...]) -> None:
    """Once the producer rests."""
    messages = chain.topic.messages()
    good = sum(one.value.isdigit() for one in messages)
    wait_for_rows(tables[1], good)
    wait_until(lambda: sum(row["rows"] for row in rows_of(tables[2].name)) == good, 120)
    chain.assert_holds(messages)
    for table in tables:
        verification.verify(table)


def test_a_backfill_beside_a_live_stream_loses_and_doubles_nothing(chain, driver, spark):
    chain.topic.create(2)
    tables = chain.in_slices
    _, silver, gold = tables
    with driver(*tables) as running:
        with producing(chain.topic, 20, 0.1):
            wait_until(lambda: has_rows(gold), 120)
            done = Backfills(spark, tables).run(silver, 60, 180)
            assert [one.table for one in done] == [gold.name, silver.name]
            assert all(one.rows_after == one.rows_before or one.table == gold.name for one in done)
            assert done[1].rows_after
            seen = Log(settings().table_path(gold.name)).newest
            wait_until(lambda: Log(settings().table_path(gold.name)).newest > seen + 2, 120)
        assert_all_arrives(chain, tables)
        assert running.error is None


@only_in_full_runs
def test_backfills_beside_a_stream_of_a_thousand_events_a_second_lose_and_double_nothing(chain, driver, spark):
    chain.topic.create(2)
    tables = chain.in_slices
    _, silver, gold = tables
    with driver(*tables) as running:
        with producing(chain.topic, 250, 0.25):
            wait_until(lambda: has_rows(gold), 120)
            for begin in (0, 120, 60, 300):
                Backfills(spark, tables).run(silver, begin, begin + 120)
                Backfills(spark, tables).run(gold, begin, begin + 60)
        assert_all_arrives(chain, tables)
        assert running.error is None


def job(chain: Chain, home: Path) -> Job:
    return Job(home, "tests.backfill_job", chain.name, chain.topic.name, chain.in_slices[1].name, BEGIN, END)


def newest(engine, table: Table) -> Backfill | None:
    return next(iter(backfills.newest(engine, table.name, 1)), None)


def is_in(phase: str, which: int = 1) -> Callable:
    def look(engine, tables) -> Callable[[], bool]:
        return lambda: (found := newest(engine, tables[which])) is not None and found.phase == phase

    return look


def has_committed() -> Callable:
    def look(_engine, tables) -> Callable[[], bool]:
        path = settings().table_path(tables[1].name)
        before = Log(path).newest

        def is_there() -> bool:
            with suppress(Exception):
                log = Log(path)
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


@is_long
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_job_that_is_killed_is_ended_by_the_next_and_nothing_is_lost_or_doubled(
    chain, driver, engine, tmp_path, moment
):
    chain.topic.create(2)
    tables = chain.in_slices
    _, silver, gold = tables
    with driver(*tables) as running:
        with producing(chain.topic, 20, 0.2):
            wait_until(lambda: has_rows(gold), 120)
            job(chain, tmp_path).kill_when(MOMENTS[moment](engine, tables))
            second = job(chain, tmp_path)
            assert second.wait() == 0, second.log.read_text()
        for table in (silver, gold):
            assert all(one.phase == "done" for one in backfills.newest(engine, table.name)), second.log.read_text()
        assert_all_arrives(chain, tables)
        assert running.error is None
    assert [one for one in stale.every(engine) if one.table == gold.name] == []
