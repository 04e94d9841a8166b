"""Maintenance windows run while the flows of their tables run, and jobs and drivers are killed."""

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
from functools import partial
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from include.catalog import Catalog
from include.control.jobs import store, windows
from include.control.jobs.windows import Window
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.lock import LockRequest
from include.control.leases.process import Holder
from include.control.store import database
from include.delta import stored_table
from include.delta.delta_log import DeltaLog
from include.engine.batch import batch
from include.engine.stream import preparation
from include.errors import Unreachable
from include.lake import locations
from include.lake.paths import names
from include.maintenance import table_survey, vacuum_guard
from include.maintenance.plan import OPTIMIZE, VACUUM
from include.settings import from_environment, settings
from include.spec import Table
from tests.conftest import ROOT
from tests.support.flows import Chain, only_in_full_runs, rows_of, wait_for_rows
from tests.support.jobs.process import SHORT_LIVED
from tests.support.pipeline import Pipeline, random_events
from tests.support.waiting import sleep_through, wait_until

SILVER = "silver.tracker_readings"


def log(table: Table) -> DeltaLog:
    return DeltaLog(locations.table_path(table.name))


def send_in_batches(chain: Chain, count: int, begin: int = 0) -> None:
    """Send each number in its own batch, so that bronze gets a commit and a file for each number."""
    for number in range(begin, begin + count):
        chain.topic.send(number)
        wait_for_rows(chain.bronze, number + 1)


def test_a_window_makes_few_files_of_many_while_the_flows_go_on(chain, driver, maintain):
    chain.topic.create()
    bronze, silver, _ = chain.in_windows
    with driver(bronze, silver) as running_driver:
        send_in_batches(chain, 12)
        query = running_driver.query(bronze)
        assert len(log(bronze).state.live) >= 12
        completed_window = maintain(bronze, silver)
        assert (completed_window.state, completed_window.before.rows, completed_window.after.rows) == ("done", 12, 12)
        assert completed_window.after.files < 6
        send_in_batches(chain, 3, begin=12)
        wait_for_rows(silver, 15)
        assert running_driver.query(bronze) is query, "its query never ended"
    chain.assert_bronze_holds(chain.topic.messages())
    chain.assert_silver_holds(chain.topic.messages())


def test_a_window_waits_for_the_batch_in_hand_and_the_next_batch_waits_for_the_window(
    chain, driver, engine, run_once, monkeypatch
):
    chain.topic.create().send(1)
    batch_begun, release = threading.Event(), threading.Event()
    write, silver = batch.write, chain.silver

    def blocked_write(*arguments):
        batch_begun.set()
        assert release.wait(60)
        write(*arguments)

    run_once(chain.bronze)
    monkeypatch.setattr(batch, "write", blocked_write)
    window = LockRequest(lease.window_lease(silver.name), silver.name, alone=True)
    lease_renewer = LeaseRenewer(engine, Holder.here("window", os.getpid()), 60, lambda reason: os.abort())
    with driver(silver) as running_driver:
        assert batch_begun.wait(60)
        lease_renewer.take([window.name])
        lease_renewer.start()
        answers = iter([True, True, True, False])
        assert lease_renewer.enter(window, answers.__next__) is False, "the batch is running"
        window_entry = threading.Thread(target=lambda: lease_renewer.enter(window, lambda: True))
        window_entry.start()
        release.set()
        window_entry.join(60)
        wait_for_rows(silver, 1)
        version_before = log(silver).newest
        chain.topic.send(2)
        run_once(chain.bronze)
        silver_flow = running_driver.host._flows[silver.name]
        wait_until(lambda: silver_flow._gate_polls > 5, 60)
        assert log(silver).newest == version_before, "its batch is planned, and waits at the gate"
        assert running_driver.query(silver).isActive
        lease_renewer.leave(window.name)
        wait_for_rows(silver, 2)
    lease_renewer.stop()


@only_in_full_runs
def test_a_flow_starts_again_after_the_log_of_its_source_was_cut(chain, engine, run_once):
    chain.topic.create()
    bronze, silver, _ = chain.in_windows
    # Bronze commits each record in a separate batch.
    bronze = replace(bronze, source=replace(bronze.source, max_offsets=1))
    for records in (9, 1, 12):
        chain.topic.send(*range(records))
        run_once(bronze)
        run_once(silver)
    # A checkpoint of bronze's log lies between the start offset and the end offset of silver's last batch.
    bronze_state = table_survey.survey(engine, bronze, Catalog({table.name: table for table in (bronze, silver)}))[0]
    vacuum_guard.clean_log(bronze_state.log, bronze_state.log_needed_from)
    chain.topic.send(22)
    run_once(bronze, silver)
    chain.assert_silver_holds(chain.topic.messages())


def test_a_table_file_that_changes_its_table_waits_for_the_window(chain, engine, run_once, monkeypatch):
    monkeypatch.setattr(preparation, "DDL_TIMEOUT_SECONDS", 1)
    chain.topic.create().send(1)
    run_once(chain.bronze)
    changed_bronze = replace(chain.bronze, owner="team-x")
    window = LockRequest(lease.window_lease(changed_bronze.name), changed_bronze.name, alone=True)
    lease_renewer = LeaseRenewer(engine, Holder.here("window", os.getpid()), 60, lambda reason: os.abort())
    lease_renewer.take([window.name])
    lease_renewer.start()
    assert lease_renewer.enter(window, lambda: True)
    version_before = log(changed_bronze).newest
    with pytest.raises(Unreachable, match="which others have been writing for 1 s: it is tried again"):
        run_once(changed_bronze)
    assert log(changed_bronze).newest == version_before
    lease_renewer.leave(window.name)
    lease_renewer.stop()
    run_once(changed_bronze)
    assert stored_table.open_table(changed_bronze.name).metadata().configuration["sluice.owner"] == "team-x"


@only_in_full_runs
def test_of_two_windows_the_second_names_the_first_and_is_skipped(chain, engine, run_once, job):
    chain.topic.create()
    bronze, _, _ = chain.in_windows
    for number in range(8):
        chain.topic.send(*range(1 + 20 * number))
        run_once(bronze)
    # Nobody renews this lease. After its end the second window would end its holder, which is this process.
    lease.acquire(engine, [lease.window_lease(bronze.name)], Holder.here("first", os.getpid()), 3_600)
    second_job = job(chain, bronze)
    assert second_job.wait() == 5
    assert f"window {bronze.name} is already written by driver 'first'" in second_job.log.read_text()
    assert newest_window(engine, bronze).state == "skipped"
    assert "OPTIMIZE" not in [commit.operation for commit in log(bronze).commits()]


@only_in_full_runs
def test_a_stream_of_upserts_compacts_its_own_table(chain, driver):
    chain.topic.create()
    bronze, silver, gold = chain.in_windows
    policy = replace(gold.maintain, target_file_mb=0.005)
    gold = replace(gold, write=replace(gold.write, in_windows=False), maintain=policy)
    with driver(bronze, silver, gold):
        for number in range(9):
            # Each file has a different size, because Delta cannot select only some of several files of one size.
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
    bronze_with_time_travel = replace(bronze, maintain=replace(bronze.maintain, time_travel_hours=1))
    for number in range(8):
        chain.topic.send(*range(1 + 20 * number))
        run_once(bronze)
    run_once(silver)
    dataset_before = stored_table.dataset(bronze.name)
    rows = dataset_before.count_rows()
    for _ in range(2):
        # The flows have read on, so the second window may delete the files that the first window removed.
        maintain(bronze_with_time_travel, silver)
        run_once(silver)
    assert "OPTIMIZE" in [commit.operation for commit in log(bronze).commits()]
    assert dataset_before.to_table().num_rows == rows
    maintain(bronze, silver)
    with pytest.raises(FileNotFoundError):
        dataset_before.to_table()


def test_what_was_gathered_for_a_window_is_merged_there_once(chain, run_once, maintain):
    chain.topic.create().send(*range(5), 61)
    bronze, silver, gold = chain.in_windows
    run_once(bronze, silver)
    assert maintain(gold, silver).state == "done"
    chain.assert_holds(chain.topic.messages())
    chain.topic.send(2, 62, 3_000)
    run_once(bronze, silver)
    assert maintain(gold, silver).state == "done"
    version_before = log(gold).newest
    assert maintain(gold, silver).state == "done"
    assert all(commit.operation != "MERGE" for commit in log(gold).commits() if commit.version > version_before)
    chain.assert_holds(chain.topic.messages())


@only_in_full_runs
def test_an_optimize_by_hand_beside_a_live_upsert_ends_no_flow_and_costs_no_row(chain, driver, spark):
    chain.topic.create()
    bronze, silver, gold = (replace(table, interval_seconds=0.1) for table in chain.all)
    stopped = threading.Event()

    def optimize() -> int:
        count, session = 0, spark.newSession()
        session.conf.set("spark.databricks.delta.optimize.maxFileSize", "100000")
        while not stopped.wait(0.5):
            # On a conflict, the manual OPTIMIZE may fail, but the stream must not fail.
            with suppress(PySparkException, Py4JJavaError):
                session.sql(f"OPTIMIZE delta.`{locations.table_path(gold.name)}`")
                count += 1
        return count

    with ThreadPoolExecutor(1) as pool, driver(bronze, silver, gold, is_supervised=False) as running_driver:
        chain.topic.send(*range(0, 600, 30))
        wait_for_rows(gold, 10)
        optimizer = pool.submit(optimize)
        try:
            for number in range(8):
                # First a new minute becomes a new file. Then all rows of older files change.
                for numbers in ([600 + 60 * number], range(number, 600, 60)):
                    chain.topic.send(*numbers)
                    wait_until(lambda: running_driver.error or aggregated_rows(gold) == message_count(chain), 120)
            wait_until(lambda: "OPTIMIZE" in [commit.operation for commit in log(gold).commits()], 60)
        finally:
            stopped.set()
        assert optimizer.result() > 0
        assert running_driver.error is None
    chain.assert_holds(chain.topic.messages())


def aggregated_rows(gold: Table) -> int:
    return sum(row["rows"] for row in rows_of(gold.name))


def message_count(chain: Chain) -> int:
    return len(chain.topic.messages())


class Job:
    """A maintenance job in a child process."""

    def __init__(self, home: Path, chain: Chain, table: Table, *moments: str) -> None:
        arguments = [chain.name, chain.topic.name, table.name, *moments]
        command = [sys.executable, "-m", "tests.support.jobs.maintain", *arguments]
        self.log = home / f"job-{table.name}-{os.urandom(3).hex()}.log"
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env={**os.environ, **SHORT_LIVED}, stdout=output, stderr=subprocess.STDOUT
            )
        self.table = table

    def wait(self) -> int:
        return self.process.wait(300)

    def kill_when(self, condition: Callable[[], object], engine, target: str) -> None:
        """Send SIGKILL to its JVM, its Python process or both as soon as the condition holds."""
        deadline = threading.Event()
        timer = threading.Timer(240, deadline.set)
        timer.start()
        # wait_until polls only five times a second. The wait leaves CPU time to the job.
        while not condition():
            deadline.wait(0.01)
            assert self.process.poll() is None, self.log.read_text()
            assert not deadline.is_set(), self.log.read_text()
        timer.cancel()
        with database.transaction(engine) as connection:
            holder = lease.holders(connection)[lease.window_lease(self.table.name)]
        for process in {"jvm": [holder.jvm], "python": [holder.python], "both": [holder.jvm, holder.python]}[target]:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.process.wait(60)


@pytest.fixture
def job(tmp_path) -> Callable[..., Job]:
    return partial(Job, tmp_path)


def newest_window(engine, table: Table) -> windows.Window | None:
    return next(iter(store.newest(engine, Window, table.name, 1)), None)


def has_begun(engine, table: Table, step: str) -> Callable[[], bool]:
    def condition() -> bool:
        window = newest_window(engine, table)
        return window is not None and window.state == "open" and (window.message or "").startswith(step)

    return condition


def has_committed(table: Table, operation: str) -> Callable[[], bool]:
    def condition() -> bool:
        with suppress(Exception):
            table_log = log(table)
            return table_log.commit(table_log.newest).operation == operation
        return False

    return condition


def data_files(table: Table) -> int:
    return sum(name.endswith(".parquet") for name in names(locations.table_path(table.name)))


def has_new_file(table: Table) -> Callable[[], bool]:
    count_before = data_files(table)
    return lambda: data_files(table) > count_before


def has_fewer_files(table: Table) -> Callable[[], bool]:
    count_before = data_files(table)
    return lambda: data_files(table) < count_before


def is_only_vacuum_due(engine, tables: tuple[Table, ...]) -> bool:
    """Whether a window of the first table would vacuum it and not compact it."""
    [survey] = table_survey.survey(engine, tables[0], Catalog({table.name: table for table in tables}))
    return survey.plan.step(VACUUM).is_worth_it and not survey.plan.step(OPTIMIZE).is_worth_it


# By phase: the index of the table, the condition for the kill, and the target of the kill. Compaction by Arrow is so
# short that its job kills itself, before or after its commit.
PHASES = {
    "optimize-begins": (0, lambda engine, table: has_begun(engine, table, "optimize"), "both"),
    "optimize-writes": (0, "before", "both"),
    "optimize-has-committed": (0, "after", "both"),
    "vacuum-begins": (0, lambda engine, table: has_begun(engine, table, "vacuum"), "python"),
    "vacuum-is-announced": (0, lambda engine, table: has_committed(table, "VACUUM START"), "jvm"),
    "vacuum-deletes": (0, lambda engine, table: has_fewer_files(table), "both"),
    "vacuum-has-committed": (0, lambda engine, table: has_committed(table, "VACUUM END"), "both"),
    "merge-begins": (2, lambda engine, table: has_begun(engine, table, "merge"), "both"),
    "merge-writes": (2, lambda engine, table: has_new_file(table), "jvm"),
    "merge-has-committed": (2, lambda engine, table: has_committed(table, "MERGE"), "python"),
}


@only_in_full_runs
@pytest.mark.parametrize("phase", PHASES)
def test_a_job_that_is_killed_leaves_the_table_whole_and_the_next_one_ends_the_work(chain, driver, engine, job, phase):
    index, moment, target = PHASES[phase]
    tables = chain.in_windows
    bronze, silver, gold = tables
    table = tables[index]
    chain.topic.create()
    with driver(bronze, silver) as running_driver:
        send_in_batches(chain, 12)
        wait_for_rows(silver, 12)
        count = 12
        while phase.startswith("vacuum") and not is_only_vacuum_due(engine, tables):
            # Removed files are kept until the flows have read on, so a window that compacts deletes none of them.
            assert count < 24, "no window had files to delete and none to compact"
            assert job(chain, table).wait() == 0
            send_in_batches(chain, 1, begin=count)
            count += 1
            wait_for_rows(silver, count)
        if isinstance(moment, str):
            killed_job = job(chain, table, moment)
            assert killed_job.wait() == -signal.SIGKILL, killed_job.log.read_text()
        else:
            job(chain, table).kill_when(moment(engine, table), engine, target)
        # The flows continue as soon as they detect the end of the job.
        send_in_batches(chain, 2, begin=count)
        wait_for_rows(silver, count + 2)
        wait_until(lambda: newest_window(engine, table).state == "failed", 30)
        second_job = job(chain, table)
        assert second_job.wait() == 0, second_job.log.read_text()
        assert newest_window(engine, table).state in ("done", "skipped")
        if table is bronze:
            gold_job = job(chain, gold)
            assert gold_job.wait() == 0, gold_job.log.read_text()
        assert running_driver.error is None
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
    window_job = job(chain, bronze)
    wait_until(has_begun(engine, bronze, ""), 120, window_job.log.read_text)
    with closing(sqlite3.connect(settings().home / "control.db", isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        if survives:
            sleep_through(4)
            assert window_job.process.poll() in (None, 0), window_job.log.read_text()
        else:
            assert window_job.wait() == 6, window_job.log.read_text()
        connection.rollback()
    assert window_job.wait() == (0 if survives else 6), window_job.log.read_text()
    wait_until(lambda: newest_window(engine, bronze).state == ("done" if survives else "failed"), 30)
    chain.topic.send(7)
    run_once(bronze)
    assert job(chain, bronze).wait() == 0
    chain.assert_bronze_holds(chain.topic.messages())


@contextmanager
def window_of(pipeline: Pipeline, table: str) -> Iterator[None]:
    """Hold a window of the table in the control database of a pipeline during the block."""
    lease_renewer = LeaseRenewer(pipeline.control, Holder.here("a test", os.getpid()), 10, lambda reason: os.abort())
    entry = LockRequest(lease.window_lease(table), table, alone=True)
    lease_renewer.take([entry.name])
    lease_renewer.start()
    try:
        assert lease_renewer.enter(entry, lambda: True)
        yield
    finally:
        lease_renewer.leave(entry.name)
        lease_renewer.stop()


@only_in_full_runs
def test_a_driver_that_is_killed_while_its_flow_waits_at_the_gate_loses_and_doubles_nothing(pipeline: Pipeline):
    pipeline.produce(random_events(1, count=500))
    driver = pipeline.submit()
    pipeline.wait_until_gold_is_right()
    with window_of(pipeline, SILVER):
        commits_before = pipeline.commits(SILVER)
        pipeline.produce(random_events(2, count=500))
        wait_until(lambda: pipeline.count("bronze.tracker_events") == 1_000, 60, pipeline.log.read_text)
        offsets = locations.checkpoints(SILVER, from_environment(pipeline.environment)) / "1" / "offsets"
        commits = locations.checkpoints(SILVER, from_environment(pipeline.environment)) / "1" / "commits"
        wait_until(lambda: newest_number(offsets) > newest_number(commits), 60)
        driver.send_signal(signal.SIGKILL)
        driver.wait(10)
        assert pipeline.commits(SILVER) == commits_before
    pipeline.submit()
    pipeline.wait_until_gold_is_right()
    pipeline.assert_nothing_lost_or_doubled()


def newest_number(directory) -> int:
    return max(int(entry.name) for entry in directory.iterdir() if entry.name.isdigit())
