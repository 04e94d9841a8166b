"""Full refreshes of Kafka tables run beside live streams, and their jobs are killed at each phase."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from include.catalog import Catalog
from include.checkpoints import checkpoint_files
from include.control.jobs import backfills, stale_rows, store
from include.control.jobs.backfills import Backfill
from include.control.store import database
from include.control.store.schema import leases
from include.delta.delta_log import DeltaLog
from include.engine.jobs import shadow_table
from include.errors import UsageError
from include.lake import locations
from include.ledger import verify
from include.project.ranges import Slice
from include.recovery.backfill import preview
from include.spec import Kafka, Table
from tests.support.backfills import Backfills
from tests.support.flows import Chain, declared, has_rows, only_in_full_runs, rows_of
from tests.support.jobs.process import Job
from tests.support.producing import produce_numbers
from tests.support.topic import Topic
from tests.support.waiting import wait_until


def refreshable_tables(chain: Chain) -> tuple[Table, Table, Table]:
    bronze, silver, gold = chain.in_slices
    return replace(bronze, reset_allowed=True), silver, gold


def test_a_full_refresh_of_what_kafka_feeds_beside_its_producer_loses_and_doubles_nothing(chain, driver, spark):
    chain.topic.create(2)
    tables = refreshable_tables(chain)
    bronze, silver, gold = tables
    with driver(*tables) as running_driver:
        with produce_numbers(chain.topic, 20, 0.2):
            wait_until(lambda: has_rows(gold), 120)
            completed = Backfills(spark, tables).run(bronze, as_a_whole=True)
            assert [backfill.table for backfill in completed] == [gold.name, silver.name, bronze.name]
            version_before = DeltaLog(locations.table_path(gold.name)).newest
            wait_until(lambda: DeltaLog(locations.table_path(gold.name)).newest > version_before + 2, 120)
        chain.assert_all_arrives(tables)
        assert running_driver.error is None
    assert [checkpoint_files.position_of(table.flow).generation for table in tables] == [2, 2, 2]
    assert not any(path.is_dir() for path in shadow_table.places(bronze))


@only_in_full_runs
def test_what_the_topic_no_longer_holds_is_kept_until_the_table_file_lets_go_of_it(chain, topic, run_once, spark):
    topic.create().send(1, 2, 61, 62, "x")
    run_once(*chain.all)
    messages_read = topic.messages()
    topic.delete_before(3)
    with pytest.raises(UsageError, match=f"rows that topic '{topic.name}' no longer holds would be gone for good"):
        Backfills(spark, chain.all).run(chain.bronze, as_a_whole=True)
    topic.send(3)
    run_once(*chain.all)
    chain.assert_holds([*messages_read, topic.messages()[-1]])
    tables = refreshable_tables(chain)
    lines = list(preview(tables[0], Catalog({table.name: table for table in tables}), Slice()))
    assert lines[:2] == [
        f"{chain.bronze.name} as a whole: 6 rows are recomputed from topic '{topic.name}'",
        f"  3 of its records are in topic '{topic.name}' no more, and will be gone",
    ]
    Backfills(spark, tables).run(tables[0], as_a_whole=True)
    chain.assert_holds(topic.messages())
    topic.send(4)
    run_once(*tables)
    chain.assert_holds(topic.messages())
    assert len(rows_of(chain.bronze.name)) == 4
    for table in tables:
        verify.verify(table)


@only_in_full_runs
def test_a_table_of_several_flows_is_made_anew_by_all_of_them(chain, topic, broker, run_once, spark):
    other_topic = Topic(broker).create()
    topic.create(2).send(1, 2, 3)
    other_topic.send(4)
    bronze = declared(
        chain.bronze,
        source={"eu": Kafka(topic.name), "us": Kafka(other_topic.name)},
        reset_allowed=True,
        cluster_by=("timestamp",),
    )
    tables = (bronze, replace(chain.silver, time_column="time"), chain.gold)
    run_once(*[flow for table in tables for flow in table.flows])
    topic.send(5, 6)
    Backfills(spark, tables).run(bronze, as_a_whole=True)
    other_topic.send(7)
    run_once(*[flow for table in tables for flow in table.flows])
    assert sorted(int(row["value"]) for row in rows_of(bronze.name)) == [1, 2, 3, 4, 5, 6, 7]
    assert [checkpoint_files.position_of(flow.flow).generation for flow in bronze.flows] == [2, 2]
    assert sum(row["rows"] for row in rows_of(chain.gold.name)) == 7
    for table in tables:
        verify.verify(table)


@only_in_full_runs
def test_an_emptied_topic_and_one_that_was_created_anew_are_read_from_where_they_begin(chain, topic, run_once, spark):
    topic.create().send(1, 2, 61)
    tables = refreshable_tables(chain)
    run_once(*tables)
    topic.delete_before(3)
    Backfills(spark, tables).run(tables[0], as_a_whole=True)
    assert rows_of(chain.bronze.name) == rows_of(chain.gold.name) == []
    topic.send(4)
    run_once(*tables)
    chain.assert_holds(topic.messages())
    topic.delete()
    topic.create(2).send(5, 6)
    catalog = Catalog({table.name: table for table in tables})
    assert any("1 of its records are in topic" in line for line in preview(tables[0], catalog, Slice()))
    Backfills(spark, tables).run(tables[0], as_a_whole=True)
    topic.send(7)
    run_once(*tables)
    chain.assert_holds(topic.messages())
    for table in tables:
        verify.verify(table)


def job(chain: Chain, home: Path) -> Job:
    """A full refresh of bronze and all tables that read it."""
    return Job(home, "tests.support.jobs.full_refresh", chain.name, chain.topic.name)


def in_phase(phase: str, index: int = 0) -> Callable:
    def condition(engine, tables) -> Callable[[], bool]:
        def is_phase() -> bool:
            backfill = next(iter(store.newest(engine, Backfill, tables[index].name, 1)), None)
            return backfill is not None and backfill.state == phase

        return is_phase

    return condition


def shadow_table_has_rows(_engine, tables) -> Callable[[], bool]:
    return lambda: has_rows(shadow_table.shadow_of(tables[0]))


def job_holds_lease(engine, tables) -> Callable[[], bool]:
    def is_held() -> bool:
        with database.transaction(engine) as connection:
            lease = connection.execute(leases.select().where(leases.c.flow == tables[0].flow)).one()
        return "backfill" in lease.holder

    return is_held


def generation_has_begun(_engine, tables) -> Callable[[], bool]:
    checkpoints = locations.checkpoints(tables[0].flow)
    return lambda: (checkpoints / "2").is_dir()


def has_commit(index: int, commits_after: int) -> Callable:
    """The table has this many commits after the commit of the refresh."""

    def condition(_engine, tables) -> Callable[[], bool]:
        path = locations.table_path(tables[index].name)
        version_before = DeltaLog(path).newest

        def is_committed() -> bool:
            with suppress(Exception):
                log = DeltaLog(path)
                job_versions = [
                    version for version in log.after(version_before) if "backfill" in log.commit(version).metadata
                ]
                return bool(job_versions) and log.newest >= job_versions[0] + commits_after
            return False

        return is_committed

    return condition


MOMENTS = {
    "its-twin-is-being-filled": in_phase(backfills.COMPUTING),
    "its-twin-holds-rows": shadow_table_has_rows,
    "it-waits-for-its-window": in_phase(backfills.WAITING),
    "its-flow-is-stopped": job_holds_lease,
    "readers-are-stopped": in_phase(backfills.DRAINING),
    "it-begins-to-replace": in_phase(backfills.REPLACING),
    "a-generation-is-begun": generation_has_begun,
    "the-table-is-replaced": has_commit(0, 0),
    "its-flow-has-its-commit": has_commit(0, 1),
    "it-is-append-only-again": has_commit(0, 2),
    "silver-is-made": in_phase(backfills.COMPUTING, 1),
    "silver-is-replaced": has_commit(1, 0),
    "gold-is-replaced": in_phase(backfills.REPLACING, 2),
}


@only_in_full_runs
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_full_refresh_whose_job_is_killed_is_ended_by_the_next_and_no_reader_ever_sees_a_half(
    chain, driver, engine, tmp_path, moment
):
    chain.topic.create(2)
    tables = refreshable_tables(chain)
    bronze, silver, gold = tables
    with driver(*tables) as running_driver:
        with produce_numbers(chain.topic, 20, 0.2):
            wait_until(lambda: has_rows(gold), 120)
            with count_rows(bronze) as row_counts:
                job(chain, tmp_path).kill_when(MOMENTS[moment](engine, tables))
                second_job = job(chain, tmp_path)
                assert second_job.wait() == 0, second_job.log.read_text()
            assert not row_counts.shrank, "the topic forgets nothing, so at no moment are there fewer rows than before"
        for table in tables:
            assert all(backfill.state == "done" for backfill in store.newest(engine, Backfill, table.name)), (
                second_job.log.read_text()
            )
        chain.assert_all_arrives(tables)
        assert running_driver.error is None
    assert [
        stale_table for stale_table in stale_rows.stale_ranges(engine) if stale_table.table in (silver.name, gold.name)
    ] == []
    assert not any(path.is_dir() for path in shadow_table.places(bronze))


class RowCounts:
    shrank = False


@contextmanager
def count_rows(table: Table) -> Iterator[RowCounts]:
    """Poll the row count of the table during the block."""
    row_counts, stopped = RowCounts(), threading.Event()

    def poll() -> None:
        max_count = 0
        while not stopped.wait(0.05):
            count = sum(file.rows or 0 for file in DeltaLog(locations.table_path(table.name)).state.live)
            row_counts.shrank |= count < max_count
            max_count = max(max_count, count)

    reader = threading.Thread(target=poll)
    reader.start()
    try:
        yield row_counts
    finally:
        stopped.set()
        reader.join()
