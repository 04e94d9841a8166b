"""Windows over real tables while their flows run: who steps aside, who dies, and that nothing is lost or doubled."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from include.catalog import Catalog
from include.control import lease
from include.control.jobs import windows
from include.control.lease_renewer import LeaseRenewer
from include.control.lock import LockRequest
from include.control.process import Holder
from include.control.store import database
from include.engine.batch import batch
from include.engine.stream import preparation
from include.errors import Unreachable
from include.maintenance import table_state, vacuum_guard
from include.readers.delta_log import DeltaLog
from include.settings import from_environment, settings
from include.spec import Table
from tests.conftest import ROOT
from tests.support.flows import Chain, only_in_full_runs, rows_of, wait_for_rows
from tests.support.jobs import SHORT_LIVED
from tests.support.pipeline import Pipeline, part
from tests.support.waiting import sleep_through, wait_until

SILVER = "silver.tracker_readings"


def log(table: Table) -> DeltaLog:
    return DeltaLog(settings().table_path(table.name))


def send_in_batches(chain: Chain, count: int, begin: int = 0) -> None:
    """Each value becomes a commit of bronze, and so a file."""
    for number in range(begin, begin + count):
        chain.topic.send(number)
        wait_for_rows(chain.bronze, number + 1)


def test_a_window_makes_few_files_of_many_while_the_flows_go_on(chain, driver, maintain):
    chain.topic.create()
    bronze, silver, _ = chain.in_windows
    with driver(bronze, silver) as running:
        send_in_batches(chain, 12)
        query = running.query(bronze)
        assert len(log(bronze).state.live) >= 12
        found = maintain(bronze, silver)
        assert (found.state, found.before.rows, found.after.rows) == ("done", 12, 12)
        assert found.after.files < 6
        send_in_batches(chain, 3, begin=12)
        wait_for_rows(silver, 15)
        assert running.query(bronze) is query, "its query never ended"
    chain.assert_bronze_holds(chain.topic.messages())
    chain.assert_silver_holds(chain.topic.messages())


def test_a_window_waits_for_the_batch_in_hand_and_the_next_batch_waits_for_the_window(
    chain, driver, engine, run_once, monkeypatch
):
    chain.topic.create().send(1)
    begun, go_on = threading.Event(), threading.Event()
    write, silver = batch.write, chain.silver

    def slow(*given):
        begun.set()
        assert go_on.wait(60)
        write(*given)

    run_once(chain.bronze)
    monkeypatch.setattr(batch, "write", slow)
    window = LockRequest(lease.window_lease(silver.name), silver.name, alone=True)
    keeper = LeaseRenewer(engine, Holder.here("window", os.getpid()), 60, lambda reason: os.abort())
    with driver(silver) as running:
        assert begun.wait(60)
        keeper.take([window.name])
        keeper.start()
        waits = iter([True, True, True, False])
        assert keeper.enter(window, waits.__next__) is False, "the batch is in hand"
        entered = threading.Thread(target=lambda: keeper.enter(window, lambda: True))
        entered.start()
        go_on.set()
        entered.join(60)
        wait_for_rows(silver, 1)
        before = log(silver).newest
        chain.topic.send(2)
        run_once(chain.bronze)
        shown = running.host._flows[silver.name]
        wait_until(lambda: shown._gate_polls > 5, 60)
        assert log(silver).newest == before, "its batch is planned, and waits at the gate"
        assert running.query(silver).isActive
        keeper.leave(window.name)
        wait_for_rows(silver, 2)
    keeper.stop()


@only_in_full_runs
def test_a_flow_starts_again_after_the_log_of_its_source_was_cut(chain, engine, run_once):
    chain.topic.create()
    bronze, silver, _ = chain.in_windows
    # Each record is a commit of its own.
    bronze = replace(bronze, source=replace(bronze.source, max_offsets=1))
    for records in (9, 1, 12):
        chain.topic.send(*range(records))
        run_once(bronze)
        run_once(silver)
    # The last batch of silver has a checkpoint of bronze's log between its beginning and its end.
    found = table_state.survey(engine, bronze, Catalog({table.name: table for table in (bronze, silver)}))[0]
    vacuum_guard.clean_log(found.log, found.log_needed_from)
    chain.topic.send(22)
    run_once(bronze, silver)
    chain.assert_silver_holds(chain.topic.messages())


def test_a_table_file_that_changes_its_table_waits_for_the_window(chain, engine, run_once, monkeypatch):
    monkeypatch.setattr(preparation, "DDL_TIMEOUT_SECONDS", 1)
    chain.topic.create().send(1)
    run_once(chain.bronze)
    owned = replace(chain.bronze, owner="team-x")
    window = LockRequest(lease.window_lease(owned.name), owned.name, alone=True)
    keeper = LeaseRenewer(engine, Holder.here("window", os.getpid()), 60, lambda reason: os.abort())
    keeper.take([window.name])
    keeper.start()
    assert keeper.enter(window, lambda: True)
    before = log(owned).newest
    with pytest.raises(Unreachable, match="which others have been writing for 1 s: it is tried again"):
        run_once(owned)
    assert log(owned).newest == before
    keeper.leave(window.name)
    keeper.stop()
    run_once(owned)
    assert DeltaTable(str(settings().table_path(owned.name))).metadata().configuration["sluice.owner"] == "team-x"


@only_in_full_runs
def test_of_two_windows_the_second_names_the_first_and_is_skipped(chain, engine, run_once, job):
    chain.topic.create()
    bronze, _, _ = chain.in_windows
    for number in range(8):
        chain.topic.send(*range(1 + 20 * number))
        run_once(bronze)
    lease.acquire(engine, [lease.window_lease(bronze.name)], Holder.here("first", os.getpid()), 60)
    second = job(chain, bronze)
    assert second.wait() == 5
    assert f"window {bronze.name} is already written by driver 'first'" in second.log.read_text()
    assert newest(engine, bronze).state == "skipped"
    assert "OPTIMIZE" not in [commit.operation for commit in log(bronze).commits()]


@only_in_full_runs
def test_a_stream_of_upserts_compacts_its_own_table(chain, driver):
    chain.topic.create()
    bronze, silver, gold = chain.in_windows
    small = replace(gold.maintain, target_file_mb=0.005)
    gold = replace(gold, write=replace(gold.write, in_windows=False), maintain=small)
    with driver(bronze, silver, gold):
        for number in range(9):
            # Of another size each, as Delta cannot be told to take some of several files of one size.
            chain.topic.send(*[60 * (10 * number + minute) for minute in range(number + 1)])
            wait_for_rows(gold, sum(range(number + 2)))
    operations = [commit.operation for commit in log(gold).commits()]
    assert "OPTIMIZE" in operations
    chain.assert_holds(chain.topic.messages())


@only_in_full_runs
def test_a_version_that_time_travel_is_promised_for_outlives_the_windows_and_an_older_one_does_not(
    chain, run_once, maintain
):
    chain.topic.create()
    bronze, silver, _ = chain.in_windows
    promised = replace(bronze, maintain=replace(bronze.maintain, time_travel_hours=1))
    for number in range(8):
        chain.topic.send(*range(1 + 20 * number))
        run_once(bronze)
    run_once(silver)
    then = DeltaTable(str(settings().table_path(bronze.name)))
    rows = then.to_pyarrow_table().num_rows
    for _ in range(2):
        # The second one may delete what the first one removed, as the flows have read on.
        maintain(promised, silver)
        run_once(silver)
    assert "OPTIMIZE" in [commit.operation for commit in log(bronze).commits()]
    assert then.to_pyarrow_table().num_rows == rows
    maintain(bronze, silver)
    with pytest.raises(FileNotFoundError):
        then.to_pyarrow_table()


def test_what_was_gathered_for_a_window_is_merged_there_once(chain, run_once, maintain):
    chain.topic.create().send(*range(5), 61)
    bronze, silver, gold = chain.in_windows
    run_once(bronze, silver)
    assert maintain(gold, silver).state == "done"
    chain.assert_holds(chain.topic.messages())
    chain.topic.send(2, 62, 3_000)
    run_once(bronze, silver)
    assert maintain(gold, silver).state == "done"
    newest = log(gold).newest
    assert maintain(gold, silver).state == "done"
    assert all(commit.operation != "MERGE" for commit in log(gold).commits() if commit.version > newest)
    chain.assert_holds(chain.topic.messages())


@only_in_full_runs
def test_an_optimize_by_hand_beside_a_live_upsert_ends_no_flow_and_costs_no_row(chain, driver, spark):
    chain.topic.create()
    bronze, silver, gold = (replace(table, interval_seconds=0.1) for table in chain.all)
    over = threading.Event()

    def optimize() -> int:
        done, by_hand = 0, spark.newSession()
        by_hand.conf.set("spark.databricks.delta.optimize.maxFileSize", "100000")
        while not over.wait(0.5):
            # Whoever does it by hand may lose against the stream; the stream must not.
            with suppress(PySparkException, Py4JJavaError):
                by_hand.sql(f"OPTIMIZE delta.`{settings().table_path(gold.name)}`")
                done += 1
        return done

    with ThreadPoolExecutor(1) as hand, driver(bronze, silver, gold, is_supervised=False) as running:
        chain.topic.send(*range(0, 600, 30))
        wait_for_rows(gold, 10)
        optimizing = hand.submit(optimize)
        try:
            for number in range(8):
                # All rows of gold change, and so do the files that are being compacted.
                chain.topic.send(*range(number, 600, 60))
                wait_for_rows(silver, 20 + 10 * (number + 1))
            wait_until(lambda: running.error or total(gold) == total_of(chain), 120)
        finally:
            over.set()
        assert optimizing.result() > 0
        assert running.error is None
    assert "OPTIMIZE" in [commit.operation for commit in log(gold).commits()]
    chain.assert_holds(chain.topic.messages())


def total(gold: Table) -> int:
    return sum(row["rows"] for row in rows_of(gold.name))


def total_of(chain: Chain) -> int:
    return len(chain.topic.messages())


class Job:
    """A window's job in processes of its own."""

    def __init__(self, chain: Chain, table: Table, home) -> None:
        command = [sys.executable, "-m", "tests.support.maintain_job", chain.name, chain.topic.name, table.name]
        self.log = home / f"job-{table.name}-{os.urandom(3).hex()}.log"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **SHORT_LIVED}, stdout=output, stderr=subprocess.STDOUT
            )
        self.table = table

    def wait(self) -> int:
        return self.process.wait(300)

    def kill_when(self, condition: Callable[[], object], engine, which: str) -> None:
        """SIGKILL to its JVM, its Python or both, at the moment at which the condition holds."""
        deadline = threading.Event()
        timer = threading.Timer(240, deadline.set)
        timer.start()
        # Not wait_until, which looks five times a second; and who is looked at needs the processors, too.
        while not condition():
            deadline.wait(0.01)
            assert self.process.poll() is None, self.log.read_text()
            assert not deadline.is_set(), self.log.read_text()
        timer.cancel()
        with database.transaction(engine) as connection:
            holder = lease.holders(connection)[lease.window_lease(self.table.name)]
        for half in {"jvm": [holder.jvm], "python": [holder.python], "both": [holder.jvm, holder.python]}[which]:
            with suppress(ProcessLookupError):
                os.kill(half.pid, signal.SIGKILL)
        self.process.wait(60)


@pytest.fixture
def job(tmp_path) -> Callable[..., Job]:
    return lambda chain, table: Job(chain, table, tmp_path)


def newest(engine, table: Table) -> windows.Window | None:
    return next(iter(windows.calendar(engine, table.name, 1)), None)


def has_begun(engine, table: Table, step: str) -> Callable[[], bool]:
    def look() -> bool:
        found = newest(engine, table)
        return found is not None and found.state == "open" and (found.step or "").startswith(step)

    return look


def has_committed(table: Table, operation: str) -> Callable[[], bool]:
    def look() -> bool:
        with suppress(Exception):
            found = log(table)
            return found.commit(found.newest).operation == operation
        return False

    return look


def has_new_file(table: Table) -> Callable[[], bool]:
    path = settings().table_path(table.name)
    before = len(list(path.glob("*.parquet")))
    return lambda: len(list(path.glob("*.parquet"))) > before


def has_fewer_files(table: Table) -> Callable[[], bool]:
    path = settings().table_path(table.name)
    before = len(list(path.glob("*.parquet")))
    return lambda: len(list(path.glob("*.parquet"))) < before


# The table, the moment in its window, and what is killed.
PHASES = {
    "optimize-begins": (0, lambda engine, table: has_begun(engine, table, "optimize"), "both"),
    "optimize-writes": (0, lambda engine, table: has_new_file(table), "jvm"),
    "optimize-has-committed": (0, lambda engine, table: has_committed(table, "OPTIMIZE"), "both"),
    "vacuum-begins": (0, lambda engine, table: has_begun(engine, table, "vacuum"), "python"),
    "vacuum-is-announced": (0, lambda engine, table: has_committed(table, "VACUUM START"), "jvm"),
    "vacuum-deletes": (0, lambda engine, table: has_fewer_files(table), "both"),
    "vacuum-has-committed": (0, lambda engine, table: has_committed(table, "VACUUM END"), "both"),
    "merge-begins": (2, lambda engine, table: has_begun(engine, table, "merge"), "both"),
    "merge-writes": (2, lambda engine, table: has_new_file(table), "jvm"),
    "merge-has-committed": (2, lambda engine, table: has_committed(table, "MERGE"), "python"),
}


SHORT = "merge-writes"


@pytest.mark.parametrize(
    "phase", [SHORT, *(pytest.param(one, marks=only_in_full_runs) for one in PHASES if one != SHORT)]
)
def test_a_job_that_is_killed_leaves_the_table_whole_and_the_next_one_ends_the_work(chain, driver, engine, job, phase):
    which, moment, victim = PHASES[phase]
    tables = chain.in_windows
    bronze, silver, gold = tables
    table = tables[which]
    chain.topic.create()
    with driver(bronze, silver) as running:
        send_in_batches(chain, 12)
        wait_for_rows(silver, 12)
        if phase.startswith("vacuum"):
            # What a window removes is kept until the flows have read on; so it is the next one's to delete.
            assert job(chain, table).wait() == 0
        send_in_batches(chain, 1, begin=12)
        wait_for_rows(silver, 13)
        killed = job(chain, table)
        killed.kill_when(moment(engine, table), engine, victim)
        # The flows go on, whatever the job has left behind, as soon as its end is noticed.
        send_in_batches(chain, 2, begin=13)
        wait_for_rows(silver, 15)
        wait_until(lambda: newest(engine, table).state == "failed", 30)
        second = job(chain, table)
        assert second.wait() == 0, second.log.read_text()
        assert newest(engine, table).state in ("done", "skipped")
        if table is bronze:
            third = job(chain, gold)
            assert third.wait() == 0, third.log.read_text()
        assert running.error is None
    chain.assert_holds(chain.topic.messages())


@only_in_full_runs
@pytest.mark.parametrize("survives", [True, False])
def test_a_window_outlives_a_short_absence_of_the_control_database_and_ends_in_a_long_one(
    chain, engine, run_once, job, survives
):
    chain.topic.create()
    bronze, _, _ = chain.in_windows
    for number in range(8):
        chain.topic.send(*range(1 + 20 * number))
        run_once(bronze)
    begun = job(chain, bronze)
    wait_until(has_begun(engine, bronze, ""), 120, begun.log.read_text)
    with closing(sqlite3.connect(settings().home / "control.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        if survives:
            sleep_through(4)
            assert begun.process.poll() in (None, 0), begun.log.read_text()
        else:
            assert begun.wait() == 6, begun.log.read_text()
        connection.rollback()
    assert begun.wait() == (0 if survives else 6), begun.log.read_text()
    wait_until(lambda: newest(engine, bronze).state == ("done" if survives else "failed"), 30)
    chain.topic.send(7)
    run_once(bronze)
    assert job(chain, bronze).wait() == 0
    chain.assert_bronze_holds(chain.topic.messages())


@contextmanager
def window_of(pipeline: Pipeline, table: str) -> Iterator[None]:
    """The table to oneself, by the control database of a pipeline."""
    keeper = LeaseRenewer(pipeline.control, Holder.here("a test", os.getpid()), 10, lambda reason: os.abort())
    entry = LockRequest(lease.window_lease(table), table, alone=True)
    keeper.take([entry.name])
    keeper.start()
    try:
        assert keeper.enter(entry, lambda: True)
        yield
    finally:
        keeper.leave(entry.name)
        keeper.stop()


@only_in_full_runs
def test_a_driver_that_is_killed_while_its_flow_waits_at_the_gate_loses_and_doubles_nothing(pipeline: Pipeline):
    pipeline.produce(part(1, count=500))
    driver = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    with window_of(pipeline, SILVER):
        before = pipeline.commits(SILVER)
        pipeline.produce(part(2, count=500))
        wait_until(lambda: pipeline.count("bronze.tracker_events") == 1_000, 60, pipeline.log.read_text)
        planned = from_environment(pipeline.environment).checkpoints(SILVER) / "1" / "offsets"
        done = from_environment(pipeline.environment).checkpoints(SILVER) / "1" / "commits"
        wait_until(lambda: newest_number(planned) > newest_number(done), 60)
        driver.send_signal(signal.SIGKILL)
        driver.wait(10)
        assert pipeline.commits(SILVER) == before
    pipeline.submit()
    pipeline.wait_until_gold_is_right()
    pipeline.assert_nothing_lost_or_doubled()


def newest_number(directory) -> int:
    return max(int(entry.name) for entry in directory.iterdir() if entry.name.isdigit())
