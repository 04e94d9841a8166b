"""Backfills beside streams that go on, and jobs that are killed in the middle of one."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import psutil
import pytest
from deltalake.exceptions import TableNotFoundError

from include.control import backfills, stale
from include.control.backfills import Backfill
from include.ledger import verification
from include.ledger.log import Log
from include.local.events import events
from include.settings import settings
from include.spec import Table
from tests.backfills import Backfills
from tests.conftest import ROOT
from tests.flows import Chain, is_long, only_in_full_runs, rows_of, wait_for_rows
from tests.pipeline import TABLES, wait_until
from tests.producing import Sent, producing
from tests.topic import Topic


def numbers(turn: int, count: int) -> list[object]:
    """Of ten minutes, and one that is no number."""
    return [*[(turn * 37 + n * 7) % 600 for n in range(count - 1)], "broken"]


def flowing(topic: Topic, at_once: int, every_seconds: float) -> AbstractContextManager[Sent]:
    return producing(lambda turn: topic.send(*numbers(turn, at_once)), at_once, every_seconds)


def has_rows(table: Table) -> bool:
    # TableNotFoundError: it is about to be created.
    with suppress(TableNotFoundError):
        return bool(rows_of(table.name))
    return False


def assert_all_arrives(chain: Chain, tables: tuple[Table, ...]) -> None:
    """Once the producer rests."""
    messages = chain.topic.messages()
    good = sum(one.value.isdigit() for one in messages)
    wait_for_rows(tables[1], good)
    wait_until(lambda: sum(row["rows"] for row in rows_of(tables[2].name)) == good, 300)
    chain.assert_holds(messages)
    for table in tables:
        verification.verify(table)


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
            seen = Log(settings().table_path(gold.name)).newest
            wait_until(lambda: Log(settings().table_path(gold.name)).newest > seen + 2, 120)
        assert_all_arrives(chain, tables)
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
                job = Job(chain, tmp_path, begin, begin + 120)
                assert job.wait() == 0, job.log.read_text()
                Backfills(spark, tables).run(gold, begin, begin + 60)
        assert sent.per_second() > 990
        assert_all_arrives(chain, tables)
        assert running.error is None
    assert all(one.phase == "done" for table in (silver, gold) for one in backfills.newest(engine, table.name))


@only_in_full_runs
def test_the_shipped_jobs_backfill_silver_beside_a_thousand_events_a_second_and_lose_and_double_nothing(pipeline):
    _, silver, gold = TABLES
    # Time goes on as it does, so that the range fills up while it is made again.
    story = events(seed=7, count=10**9, start=datetime(2026, 3, 1, 12, tzinfo=UTC), per_second=1_000)
    driver = pipeline.submit()
    with producing(lambda _: pipeline.produce(islice(story, 250)), 250, 0.25) as sent:
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


class Job:
    """A backfill's job in processes of its own."""

    def __init__(self, chain: Chain, home: Path, begin: int = 60, end: int = 180) -> None:
        silver = chain.in_slices[1].name
        texts = [datetime.fromtimestamp(one, UTC).isoformat() for one in (begin, end)]
        command = [sys.executable, "-m", "tests.backfill_job", chain.name, chain.topic.name, silver, *texts]
        self.log = home / f"job-{os.urandom(3).hex()}.log"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                # It does not live long enough to win back what the second compiler takes.
                env={**os.environ, "SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def wait(self) -> int:
        return self.process.wait(500)

    def kill_when(self, condition: Callable[[], object]) -> None:
        """SIGKILL to its JVM and its Python at the moment at which the condition holds."""
        deadline = threading.Event()
        timer = threading.Timer(500, deadline.set)
        timer.start()
        # Not wait_until, which looks five times a second; and the driver in this process needs its turn.
        while not condition():
            deadline.wait(0.02)
            assert self.process.poll() is None, self.log.read_text()
            assert not deadline.is_set(), self.log.read_text()
        timer.cancel()
        halves = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        for half in halves:
            with suppress(ProcessLookupError):
                os.kill(half.pid, signal.SIGKILL)
        self.process.wait(60)


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
        with flowing(chain.topic, 20, 0.2):
            wait_until(lambda: has_rows(gold), 300)
            Job(chain, tmp_path).kill_when(MOMENTS[moment](engine, tables))
            second = Job(chain, tmp_path)
            assert second.wait() == 0, second.log.read_text()
        for table in (silver, gold):
            assert all(one.phase == "done" for one in backfills.newest(engine, table.name)), second.log.read_text()
        assert_all_arrives(chain, tables)
        assert running.error is None
    assert [one for one in stale.every(engine) if one.table == gold.name] == []
