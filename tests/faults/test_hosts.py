"""Flows side by side in one driver that follows orders while it runs."""

import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sqlalchemy import select

from include.control import commands, lease, orders
from include.control.commands import Action, Command
from include.control.decide import State
from include.control.store import database
from include.control.store.schema import desired, runs
from include.control.supervision import supervision
from include.engine import session
from include.engine.batch import batch
from include.engine.stream import flow, host
from include.spec import Expect
from tests.support.flows import only_in_full_runs, rows_of, wait_for_rows
from tests.support.waiting import wait_until

LONG = 180


def failure_of(engine, table) -> tuple | None:
    """Error class of the flow's last failure and whether it needs a person."""
    with database.transaction(engine) as connection:
        found = connection.execute(select(runs).where(runs.c.flow == table.name)).one_or_none()
        return (found.error, found.needs_person) if found and found.failure else None


def fast(table, **values):
    return replace(table, interval_seconds=0.2, **values)


def strict(rows):
    return rows.selectExpr("CAST(CAST(value AS STRING) AS INT) AS number", "partition", "offset").selectExpr(
        "*", "timestamp_seconds(number) AS time"
    )


def test_a_flow_that_fails_leaves_the_other_alone_and_starts_again_when_its_table_is_mended(
    chain, topic, driver, engine, ask
):
    topic.create().send(1, "x")
    with driver(fast(chain.bronze), fast(chain.silver, transform=strict)) as running:
        wait_until(lambda: failure_of(engine, chain.silver), LONG)
        assert failure_of(engine, chain.silver) == ("CAST_INVALID_INPUT", True)
        settled = supervision.settle(engine, running.name, list(running.tables))
        assert settled.decisions[chain.silver.name].state is State.BROKEN
        assert settled.launch_since is None
        topic.send(2)
        wait_for_rows(chain.bronze, 3)
        running.change(fast(chain.silver))
        ask(Action.RESTART, chain.silver)
        wait_for_rows(chain.silver, 2)
        assert failure_of(engine, chain.silver) is None
    chain.assert_bronze_holds(topic.messages())
    chain.assert_silver_holds(topic.messages())


def test_a_flow_whose_failure_may_pass_is_started_again_by_the_supervisor(chain, topic, driver, engine, ask):
    is_away = [True]

    def now_and_then(rows):
        if is_away:
            raise OSError("its lookup is away")
        return chain.silver.transform(rows)

    topic.create().send(1, "x")
    with driver(fast(chain.bronze), fast(chain.silver, transform=now_and_then)) as running:
        wait_until(lambda: failure_of(engine, chain.silver), LONG)
        assert failure_of(engine, chain.silver) == ("OSError", False)
        is_away.clear()

        def is_tried_again() -> bool:
            supervision.settle(engine, running.name, list(running.tables))
            return failure_of(engine, chain.silver) is None

        wait_until(is_tried_again, LONG)
        wait_for_rows(chain.silver, 1)
    chain.assert_silver_holds(topic.messages())


def test_a_query_that_cannot_be_stopped_keeps_its_lease_and_the_other_flow_goes_on(
    chain, topic, driver, engine, ask, monkeypatch, spark, capsys
):
    said: list[str] = []

    def is_named() -> bool:
        said.append(capsys.readouterr().err)
        return f"{chain.silver.name}: its query was asked to stop and hangs, so it keeps its lease" in "".join(said)

    hangs, may_go_on = threading.Event(), threading.Event()
    write = batch.write

    def hang(rows, number, life):
        if life.table.name == chain.silver.name:
            hangs.set()
            may_go_on.wait(LONG)
        return write(rows, number, life)

    monkeypatch.setattr(batch, "write", hang)
    monkeypatch.setattr(flow, "SILENT_SECONDS", 0.5)
    spark.conf.set("spark.sql.streaming.stopTimeout", "1s")
    topic.create().send(1, 2)
    with driver(fast(chain.bronze), fast(chain.silver)) as running:
        try:
            assert hangs.wait(LONG)
            query = running.query(chain.silver)
            ask(Action.STOP, chain.silver)
            wait_until(lambda: running.error or is_named(), LONG)
            assert running.error is None
            topic.send(3, 4)
            wait_for_rows(chain.bronze, 4)
            assert running.query(chain.silver) is query
            with database.transaction(engine) as connection:
                assert chain.silver.name in lease.holders(connection)
        finally:
            may_go_on.set()
            spark.conf.set("spark.sql.streaming.stopTimeout", session.CONF["spark.sql.streaming.stopTimeout"])
        wait_until(lambda: running.query(chain.silver) is None, LONG)
        ask(Action.START, chain.silver)
        wait_for_rows(chain.silver, 4)
        assert running.error is None
    chain.assert_silver_holds(topic.messages())


def test_a_restart_deploys_the_table_file_as_it_is_now(chain, topic, driver, ask):
    topic.create().send(1, 2)
    with driver(fast(chain.bronze), fast(chain.silver)) as running:
        wait_for_rows(chain.silver, 2)
        running.change(fast(chain.silver, expect=(Expect("not_three", "number <> 3"),)))
        ask(Action.RESTART, chain.silver)
        topic.send(4)
        wait_for_rows(chain.silver, 3)
        before = running.query(chain.silver)
        ask(Action.STOP, chain.silver)
        wait_until(lambda: running.query(chain.silver) is None, LONG)
        topic.send(3, 5)
        wait_for_rows(chain.bronze, 5)
        ask(Action.START, chain.silver)
        wait_for_rows(chain.silver, 4)
        assert running.query(chain.silver).runId != before.runId
    assert sorted(row["number"] for row in rows_of(chain.silver.name)) == [1, 2, 4, 5]
    assert [row["number"] for row in rows_of(chain.silver.quarantine)] == [3]


def test_a_drain_reads_to_the_end_and_then_the_flow_is_stopped(chain, topic, driver, engine, ask):
    def state() -> str:
        with database.transaction(engine) as connection:
            mine = desired.c.flow == chain.bronze.name
            return connection.execute(select(desired.c.state).where(mine)).scalar_one()

    topic.create().send(*range(3))
    with driver(fast(chain.bronze)) as running:
        wait_for_rows(chain.bronze, 3)
        topic.send(*range(60, 70))
        ask(Action.DRAIN, chain.bronze)
        wait_until(lambda: state() == "stopped", LONG)
        chain.assert_bronze_holds(topic.messages())
        running.thread.join(LONG)
        assert not running.thread.is_alive()
        assert running.error is None


def test_a_driver_that_is_to_be_restarted_ends_after_the_batches_in_hand(chain, topic, driver, engine, run_once):
    topic.create().send(*range(3))
    with driver(fast(chain.bronze), fast(chain.silver)) as running:
        wait_for_rows(chain.silver, 3)
        command = Command(Action.RESTART, tuple(running.tables), "test", "a fault test", driver=running.name)
        commands.execute(engine, command)
        running.thread.join(LONG)
        assert not running.thread.is_alive()
        assert running.error is None
        assert orders.read(engine, running.name, [chain.bronze.name]).of[chain.bronze.name].state == "running"
    chain.assert_bronze_holds(topic.messages())


@only_in_full_runs
def test_a_batch_in_hand_gives_signs_of_life_while_its_tasks_end_and_none_while_they_hang(
    chain, topic, driver, monkeypatch, tmp_path
):
    """Its query's progress does not move before the batch is done."""
    tokens = str(tmp_path)

    def slowly(rows):
        from pyspark.sql import functions as F

        def has_taken_one() -> bool:
            for token in Path(tokens).iterdir():
                with suppress(FileNotFoundError):
                    token.unlink()
                    return True
            return False

        @F.udf("binary")
        def take_a_token(value):
            wait_until(has_taken_one, LONG)
            return value

        return rows.withColumn("value", take_a_token("value"))

    monkeypatch.setattr(flow, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(host, "HEARTBEAT_POLLS", 1)
    topic.create(partitions=8).send(*range(8))
    with driver(fast(chain.bronze, transform=slowly)) as running:
        wait_until(lambda: chain.bronze.name in running.host._flows, LONG)
        one = running.host._flows[chain.bronze.name]
        wait_until(lambda: one.batch == 0 and one.silent_seconds > 8, LONG)
        (tmp_path / "token").touch()
        wait_until(lambda: one.silent_seconds < 4, LONG)
        assert one.query.lastProgress is None
        for number in range(7):
            (tmp_path / str(number)).touch()
        wait_for_rows(chain.bronze, 8)
    chain.assert_bronze_holds(topic.messages())
