"""The lake lies on S3: flows, windows and recovery work there, and every reader without a JVM.

`make faults-on-s3` runs longer tests there.
"""

import os
import signal
from dataclasses import replace

import duckdb
import pytest

from include.catalog import Catalog
from include.checkpoints import checkpoint_files
from include.control import commands
from include.control.commands import Action, Command
from include.control.jobs import windows
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database
from include.delta import stored_table
from include.delta.delta_log import DeltaLog
from include.engine.jobs.maintenance_window import Window
from include.engine.jobs.worker import leases
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.lake import locations
from include.lake.paths import ObjectPath
from include.ledger import explain, inspection, quarantine, verify
from include.maintenance import table_survey, vacuum_guard
from include.monitoring import status
from include.settings import settings
from include.spec import Maintenance
from tests.conftest import S3_PORT
from tests.support.commits import kill_next_batch, switch_fast_path
from tests.support.flows import Chain, double_numbers, only_in_full_runs, rows_of
from tests.support.jobs.process import Job
from tests.support.rewinds import Rewinds, moment_of
from tests.support.s3 import object_lake
from tests.support.topic import Topic


@pytest.fixture(scope="module")
def store():
    with object_lake.running(S3_PORT):
        yield


@pytest.fixture
def chain(store, name, broker, monkeypatch):
    """A chain of tables in an empty lake on S3."""
    monkeypatch.setenv("SLUICE_LAKE", object_lake.new())
    settings.cache_clear()
    yield Chain(name, Topic(broker).create(2))
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def engine():
    return database.connect(settings().control_url)


def fast_commits(table: str) -> list[bool]:
    """Whether the fast path has written them, for each batch of the table, oldest first."""
    metadata = [commit.metadata for commit in DeltaLog(locations.table_path(table)).commits()]
    return [bool(batch["fast_path"]) for batch in reversed(metadata) if "batch" in batch]


def test_rows_pass_all_layers_and_every_reader_without_a_jvm_finds_them(chain, run_once, engine, spark):
    bronze, silver, gold = chain.all
    chain.topic.send(*range(6), "x")
    run_once(*chain.all)
    moment = moment_of(gold)
    chain.topic.send(*range(60, 66), "y")
    run_once(*chain.all)
    assert isinstance(locations.table_path(gold.name), ObjectPath)
    assert not (settings().home / "lake" / "silver" / chain.name).exists()
    assert not (settings().home / "checkpoints" / silver.flow / "1").exists()
    for table in chain.all:
        assert fast_commits(table.name) == [True, True]
        verify.verify(table)
    tables = Catalog({table.name: table for table in chain.all})
    inspected = inspection.inspect(silver, 2)
    assert (inspected.states, inspected.rows, inspected.faults) == ({"committed": 2}, 12, [])
    [step] = explain.of_record(tables, chain.topic.name, 0, 0)
    assert step.table == bronze.name
    origin = explain.of_version(tables, gold, DeltaLog(locations.table_path(gold.name)).newest)
    assert (origin.table, len(origin.reads), origin.above and origin.above.table) == (gold.name, 1, silver.name)
    assert {row.rules[0] for row in quarantine.sample(silver, 10).rows} == {"is_number"}
    assert [(entry.lag.is_up_to_date, entry.in_flight) for entry in status.statuses(tables)] == [(True, None)] * 3
    plan = Rewinds(spark, *chain.all).plan(silver, moment)
    assert (plan.refusals, {name: step.is_undone for name, step in plan.steps.items()}) == (
        [],
        {silver.name: True, gold.name: True},
    )
    [survey, _] = table_survey.survey(engine, silver, tables)
    assert survey.would_delete(0.0) == vacuum_guard.dead_files(survey.log) == []
    rows = duckdb.from_arrow(stored_table.dataset(gold.name))
    assert rows.sum("rows").fetchall() == [(12,)]
    chain.assert_holds(chain.topic.messages())


@pytest.mark.parametrize(
    "is_fast",
    [pytest.param(False, marks=only_in_full_runs), True],
    ids=["by Spark's writers", "by the fast path"],
)
def test_a_batch_that_died_is_written_once_and_a_reset_goes_on_where_the_table_ends(
    chain, run_once, engine, monkeypatch, is_fast
):
    switch_fast_path(monkeypatch, is_fast)
    bronze, silver, _ = chain.all
    chain.topic.send(1, "x")
    run_once(bronze)
    with kill_next_batch(monkeypatch, silver.flow, is_written=False):
        run_once(silver)
    run_once(silver)
    chain.topic.send(2, "y")
    run_once(bronze)
    with kill_next_batch(monkeypatch, silver.flow, is_written=True):
        run_once(silver)
    run_once(silver)
    chain.topic.send(3, "z")
    run_once(bronze)
    commands.execute(engine, Command(Action.RESET_CHECKPOINT, (silver.flow,), "a test", "a test"))
    run_once(silver)
    assert checkpoint_files.newest_generation(locations.checkpoints(silver.flow)) == 2
    assert is_fast in fast_commits(silver.name)
    chain.assert_silver_holds(chain.topic.messages())
    verify.verify(silver)


@only_in_full_runs
def test_a_window_compacts_and_one_vacuums_when_no_reader_needs_the_old_files(chain, run_once, engine, spark):
    policy = Maintenance(target_file_mb=0.004, time_travel_hours=0.0001, every_batches=3)
    bronze, silver, gold = (replace(table, maintain=policy) for table in chain.all)
    for number in range(4):
        chain.topic.send(number)
        run_once(bronze, silver, gold)
    tables = Catalog({table.name: table for table in (bronze, silver, gold)})
    operations = _operations_of_window(engine, spark, silver, tables)
    assert ("OPTIMIZE" in operations, "VACUUM END" in operations) == (True, False)
    assert len(vacuum_guard.dead_files(DeltaLog(locations.table_path(silver.name)))) == 4
    chain.topic.send(70, "x")
    run_once(bronze, silver, gold)
    assert "VACUUM END" in _operations_of_window(engine, spark, silver, tables)
    assert vacuum_guard.dead_files(DeltaLog(locations.table_path(silver.name))) == []
    chain.assert_holds(chain.topic.messages())
    verify.verify(silver)


@only_in_full_runs
def test_a_rewind_undoes_wrong_rows_and_the_mended_transform_computes_them_again(chain, run_once, spark):
    bronze, silver, gold = chain.all
    chain.topic.send(1, 61, "x")
    run_once(bronze, silver, gold)
    moment = moment_of(gold)
    chain.topic.send(2, 62, "y")
    run_once(bronze, replace(silver, transform=double_numbers), gold)
    assert sorted(row["number"] for row in rows_of(silver.name)) == [1, 4, 61, 124]
    assert Rewinds(spark, bronze, silver, gold).run(silver, moment).state == "done"
    run_once(silver, gold)
    chain.assert_holds(chain.topic.messages())
    for table in chain.all:
        verify.verify(table)


@only_in_full_runs
def test_a_driver_that_is_killed_between_commit_and_checkpoint_loses_and_doubles_nothing(chain, run_once):
    chain.topic.send(*range(71), "broken")
    job = Job(settings().home, "tests.support.jobs.aimed_kill", chain.name, chain.topic.name, chain.gold.name, "after")
    assert job.wait() == -signal.SIGKILL, job.log.read_text()
    planned, committed = (
        find(locations.checkpoints(chain.gold.flow) / "1")
        for find in (checkpoint_files.last_planned, checkpoint_files.last_committed)
    )
    assert (planned, committed) == (0, None)
    run_once(*chain.all)
    chain.assert_holds(chain.topic.messages())
    for table in chain.all:
        verify.verify(table)


def _operations_of_window(engine, spark, table, tables) -> set[str]:
    """The operations of the table's commits after a window of it."""
    number = windows.plan(engine, table.name, "a test", "many files", is_worth_it=True)
    lease_renewer = LeaseRenewer(engine, Holder.here("maintain", jvm_pid()), 60, lambda reason: os.abort())
    lease_renewer.take(leases(table))
    lease_renewer.start()
    try:
        host = Host(spark, engine, lease_renewer, "maintain")
        Window(engine, lease_renewer, host, spark, table, tables, number).run(lambda reason: os.abort())
    finally:
        lease_renewer.stop()
    return {commit.operation for commit in DeltaLog(locations.table_path(table.name)).commits()}
