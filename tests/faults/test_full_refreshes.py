"""Full refreshes of what Kafka feeds, beside streams that go on, and jobs that are killed in the middle of one."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from include.catalog import Catalog
from include.control.jobs import backfills, stale_tables
from include.control.store import database
from include.control.store.schema import leases
from include.engine.jobs import shadow_table
from include.errors import UsageError
from include.ledger import verify
from include.readers import position
from include.readers.delta_log import DeltaLog
from include.recovery.backfills import preview
from include.settings import settings
from include.spec import Kafka, Table
from include.validation.slices import Slice
from tests.support.backfills import Backfills
from tests.support.flows import Chain, has_rows, only_in_full_runs, rows_of
from tests.support.jobs import Job
from tests.support.producing import flowing
from tests.support.topic import Topic
from tests.support.waiting import wait_until


def unprotected(chain: Chain) -> tuple[Table, Table, Table]:
    bronze, silver, gold = chain.in_slices
    return replace(bronze, reset_allowed=True), silver, gold


def test_a_full_refresh_of_what_kafka_feeds_beside_its_producer_loses_and_doubles_nothing(chain, driver, spark):
    chain.topic.create(2)
    tables = unprotected(chain)
    bronze, silver, gold = tables
    with driver(*tables) as running:
        with flowing(chain.topic, 20, 0.2):
            wait_until(lambda: has_rows(gold), 120)
            done = Backfills(spark, tables).run(bronze, as_a_whole=True)
            assert [one.table for one in done] == [gold.name, silver.name, bronze.name]
            seen = DeltaLog(settings().table_path(gold.name)).newest
            wait_until(lambda: DeltaLog(settings().table_path(gold.name)).newest > seen + 2, 120)
        chain.assert_all_arrives(tables)
        assert running.error is None
    assert [position.position_of(one.flow).generation for one in tables] == [2, 2, 2]
    assert not any(place.exists() for place in shadow_table.places(bronze))


@only_in_full_runs
def test_what_the_topic_no_longer_holds_is_kept_until_the_table_file_lets_go_of_it(chain, topic, run_once, spark):
    topic.create().send(1, 2, 61, 62, "x")
    run_once(*chain.all)
    read = topic.messages()
    topic.delete_before(3)
    with pytest.raises(UsageError, match=f"rows that topic '{topic.name}' no longer holds would be gone for good"):
        Backfills(spark, chain.all).run(chain.bronze, as_a_whole=True)
    topic.send(3)
    run_once(*chain.all)
    chain.assert_holds([*read, topic.messages()[-1]])
    tables = unprotected(chain)
    said = list(preview(tables[0], Catalog({one.name: one for one in tables}), Slice()))
    assert said[:2] == [
        f"{chain.bronze.name} as a whole: 6 rows are made again from topic '{topic.name}'",
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
    other = Topic(broker).create()
    topic.create(2).send(1, 2, 3)
    other.send(4)
    both = replace(
        chain.bronze,
        source={"eu": Kafka(topic.name), "us": Kafka(other.name)},
        reset_allowed=True,
        cluster_by=("timestamp",),
    )
    tables = (both, replace(chain.silver, time_column="time"), chain.gold)
    run_once(*[flow for table in tables for flow in table.flows])
    topic.send(5, 6)
    Backfills(spark, tables).run(both, as_a_whole=True)
    other.send(7)
    run_once(*[flow for table in tables for flow in table.flows])
    assert sorted(int(row["value"]) for row in rows_of(both.name)) == [1, 2, 3, 4, 5, 6, 7]
    assert [position.position_of(flow.flow).generation for flow in both.flows] == [2, 2]
    assert sum(row["rows"] for row in rows_of(chain.gold.name)) == 7
    for table in tables:
        verify.verify(table)


@only_in_full_runs
def test_an_emptied_topic_and_one_that_was_created_anew_are_read_from_where_they_begin(chain, topic, run_once, spark):
    topic.create().send(1, 2, 61)
    tables = unprotected(chain)
    run_once(*tables)
    topic.delete_before(3)
    Backfills(spark, tables).run(tables[0], as_a_whole=True)
    assert rows_of(chain.bronze.name) == rows_of(chain.gold.name) == []
    topic.send(4)
    run_once(*tables)
    chain.assert_holds(topic.messages())
    topic.delete()
    topic.create(2).send(5, 6)
    catalog = Catalog({one.name: one for one in tables})
    assert any("1 of its records are in topic" in one for one in preview(tables[0], catalog, Slice()))
    Backfills(spark, tables).run(tables[0], as_a_whole=True)
    topic.send(7)
    run_once(*tables)
    chain.assert_holds(topic.messages())
    for table in tables:
        verify.verify(table)


def job(chain: Chain, home: Path) -> Job:
    """A full refresh of bronze, and all below."""
    return Job(home, "tests.support.full_refresh_job", chain.name, chain.topic.name)


def is_in(phase: str, which: int = 0) -> Callable:
    def look(engine, tables) -> Callable[[], bool]:
        def is_there() -> bool:
            found = next(iter(backfills.newest(engine, tables[which].name, 1)), None)
            return found is not None and found.phase == phase

        return is_there

    return look


def twin_has_rows(_engine, tables) -> Callable[[], bool]:
    return lambda: has_rows(shadow_table.shadow_of(tables[0]))


def flow_is_left_to_it(engine, tables) -> Callable[[], bool]:
    def is_there() -> bool:
        with database.transaction(engine) as connection:
            own = connection.execute(leases.select().where(leases.c.flow == tables[0].flow)).one()
        return "backfill" in own.holder

    return is_there


def generation_is_begun(_engine, tables) -> Callable[[], bool]:
    home = settings().checkpoints(tables[0].flow)
    return lambda: (home / "2").exists()


def has_commit(which: int, more: int) -> Callable:
    """So many commits after the one that is the refresh's."""

    def look(_engine, tables) -> Callable[[], bool]:
        path = settings().table_path(tables[which].name)
        before = DeltaLog(path).newest

        def is_there() -> bool:
            with suppress(Exception):
                log = DeltaLog(path)
                found = [one for one in log.after(before) if "backfill" in log.commit(one).metadata]
                return bool(found) and log.newest >= found[0] + more
            return False

        return is_there

    return look


MOMENTS = {
    "its-twin-is-being-filled": is_in(backfills.COMPUTING),
    "its-twin-holds-rows": twin_has_rows,
    "it-waits-for-its-window": is_in(backfills.WAITING),
    "its-flow-is-stopped": flow_is_left_to_it,
    "readers-are-stopped": is_in(backfills.DRAINING),
    "it-begins-to-replace": is_in(backfills.REPLACING),
    "a-generation-is-begun": generation_is_begun,
    "the-table-is-replaced": has_commit(0, 0),
    "its-flow-has-its-commit": has_commit(0, 1),
    "it-is-append-only-again": has_commit(0, 2),
    "silver-is-made": is_in(backfills.COMPUTING, 1),
    "silver-is-replaced": has_commit(1, 0),
    "gold-is-replaced": is_in(backfills.REPLACING, 2),
}


SHORT = "it-begins-to-replace"


@pytest.mark.parametrize(
    "moment", [SHORT, *(pytest.param(one, marks=only_in_full_runs) for one in MOMENTS if one != SHORT)]
)
def test_a_full_refresh_whose_job_is_killed_is_ended_by_the_next_and_no_reader_ever_sees_a_half(
    chain, driver, engine, tmp_path, moment
):
    chain.topic.create(2)
    tables = unprotected(chain)
    bronze, silver, gold = tables
    with driver(*tables) as running:
        with flowing(chain.topic, 20, 0.2):
            wait_until(lambda: has_rows(gold), 120)
            with watched(bronze) as least:
                job(chain, tmp_path).kill_when(MOMENTS[moment](engine, tables))
                second = job(chain, tmp_path)
                assert second.wait() == 0, second.log.read_text()
            assert not least.shrank, "the topic forgets nothing, so at no moment are there fewer rows than before"
        for table in tables:
            assert all(one.phase == "done" for one in backfills.newest(engine, table.name)), second.log.read_text()
        chain.assert_all_arrives(tables)
        assert running.error is None
    assert [one for one in stale_tables.list_all(engine) if one.table in (silver.name, gold.name)] == []
    assert not any(place.exists() for place in shadow_table.places(bronze))


class Watched:
    shrank = False


@contextmanager
def watched(table: Table) -> Iterator[Watched]:
    """Counts the table's rows to the end of the block, as a reader would."""
    found, over = Watched(), threading.Event()

    def look() -> None:
        most = 0
        while not over.wait(0.05):
            count = sum(one.rows or 0 for one in DeltaLog(settings().table_path(table.name)).state.live)
            found.shrank |= count < most
            most = max(most, count)

    reader = threading.Thread(target=look)
    reader.start()
    try:
        yield found
    finally:
        over.set()
        reader.join()
