"""Several flows run in one driver, which executes commands while it runs."""

import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from sqlalchemy import select

from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders
from include.control.flows.decide import State
from include.control.leases import lease
from include.control.store import database
from include.control.store.schema import desired, runs
from include.control.supervision import supervision
from include.engine import session
from include.engine.batch import batch
from include.engine.stream import flow, host
from include.spec import Expect
from tests.support.flows import only_in_full_runs, rows_of, wait_for_rows
from tests.support.waiting import wait_until

TIMEOUT = 180


def failure_of(engine, table) -> tuple | None:
    """The error class of the flow's last failure, and whether the failure needs a person."""
    with database.transaction(engine) as connection:
        run = connection.execute(select(runs).where(runs.c.flow == table.name)).one_or_none()
        return (run.error, run.needs_person) if run and run.failure else None


def fast(table, **values):
    return replace(table, interval_seconds=0.2, **values)


def cast_strictly(rows):
    return rows.selectExpr("CAST(CAST(value AS STRING) AS INT) AS number", "partition", "offset").selectExpr(
        "*", "timestamp_seconds(number) AS time"
    )


def test_a_flow_that_fails_leaves_the_other_alone_and_starts_again_when_its_table_is_mended(
    chain, topic, driver, engine, ask
):
    # A row that fails beside one that passes would go to the quarantine.
    topic.create().send("x")
    with driver(fast(chain.bronze), fast(chain.silver, transform=cast_strictly)) as running_driver:
        wait_until(lambda: failure_of(engine, chain.silver), TIMEOUT)
        assert failure_of(engine, chain.silver) == ("CAST_INVALID_INPUT", True)
        settlement = supervision.settle(engine, running_driver.name, list(running_driver.tables))
        assert settlement.decisions[chain.silver.name].state is State.BROKEN
        assert settlement.launch_since is None
        topic.send(1, 2)
        wait_for_rows(chain.bronze, 3)
        running_driver.change(fast(chain.silver))
        ask(Action.RESTART, chain.silver)
        wait_for_rows(chain.silver, 2)
        assert failure_of(engine, chain.silver) is None
    chain.assert_bronze_holds(topic.messages())
    chain.assert_silver_holds(topic.messages())


def test_a_flow_whose_failure_may_pass_is_started_again_by_the_supervisor(chain, topic, driver, engine, ask):
    is_away = [True]

    def fail_while_away(rows):
        if is_away:
            raise OSError("its lookup is away")
        return chain.silver.transform(rows)

    topic.create().send(1, "x")
    with driver(fast(chain.bronze), fast(chain.silver, transform=fail_while_away)) as running_driver:
        wait_until(lambda: failure_of(engine, chain.silver), TIMEOUT)
        assert failure_of(engine, chain.silver) == ("OSError", False)
        is_away.clear()

        def has_recovered() -> bool:
            supervision.settle(engine, running_driver.name, list(running_driver.tables))
            return failure_of(engine, chain.silver) is None

        wait_until(has_recovered, TIMEOUT)
        wait_for_rows(chain.silver, 1)
    chain.assert_silver_holds(topic.messages())


def hang_writes(monkeypatch, table: str) -> tuple[threading.Event, threading.Event]:
    """Let the batches of a table hang before their write.

    Returns two events: the first is set as soon as a batch hangs, and the test sets the second to release the batches.
    """
    is_hanging, release = threading.Event(), threading.Event()
    write = batch.write

    def hang(rows, number, context):
        if context.table.name == table:
            is_hanging.set()
            release.wait(TIMEOUT)
        return write(rows, number, context)

    monkeypatch.setattr(batch, "write", hang)
    return is_hanging, release


def test_a_query_that_cannot_be_stopped_keeps_its_lease_and_the_other_flow_goes_on(
    chain, topic, driver, engine, ask, monkeypatch, spark, caplog
):
    def is_reported() -> bool:
        return f"{chain.silver.name}: its query was asked to stop and hangs, so it keeps its lease" in caplog.text

    is_hanging, release = hang_writes(monkeypatch, chain.silver.name)
    monkeypatch.setattr(flow, "SILENT_SECONDS", 0.5)
    spark.conf.set("spark.sql.streaming.stopTimeout", "1s")
    topic.create().send(1, 2)
    with driver(fast(chain.bronze), fast(chain.silver)) as running_driver:
        try:
            assert is_hanging.wait(TIMEOUT)
            query = running_driver.query(chain.silver)
            ask(Action.STOP, chain.silver)
            wait_until(lambda: running_driver.error or is_reported(), TIMEOUT)
            assert running_driver.error is None
            topic.send(3, 4)
            wait_for_rows(chain.bronze, 4)
            assert running_driver.query(chain.silver) is query
            with database.transaction(engine) as connection:
                assert chain.silver.name in lease.holders(connection)
        finally:
            release.set()
            spark.conf.set("spark.sql.streaming.stopTimeout", session.CONF["spark.sql.streaming.stopTimeout"])
        wait_until(lambda: running_driver.query(chain.silver) is None, TIMEOUT)
        ask(Action.START, chain.silver)
        wait_for_rows(chain.silver, 4)
        assert running_driver.error is None
    chain.assert_silver_holds(topic.messages())


def test_a_restart_deploys_the_table_file_as_it_is_now(chain, topic, driver, ask):
    topic.create().send(1, 2)
    with driver(fast(chain.bronze), fast(chain.silver)) as running_driver:
        wait_for_rows(chain.silver, 2)
        running_driver.change(fast(chain.silver, expect=(Expect("not_three", "number <> 3"),)))
        ask(Action.RESTART, chain.silver)
        topic.send(4)
        wait_for_rows(chain.silver, 3)
        query_before = running_driver.query(chain.silver)
        ask(Action.STOP, chain.silver)
        wait_until(lambda: running_driver.query(chain.silver) is None, TIMEOUT)
        topic.send(3, 5)
        wait_for_rows(chain.bronze, 5)
        ask(Action.START, chain.silver)
        wait_for_rows(chain.silver, 4)
        assert running_driver.query(chain.silver).runId != query_before.runId
    assert sorted(row["number"] for row in rows_of(chain.silver.name)) == [1, 2, 4, 5]
    assert [row["number"] for row in rows_of(chain.silver.quarantine)] == [3]


def test_a_drain_reads_to_the_end_and_then_the_flow_is_stopped(chain, topic, driver, engine, ask):
    def state() -> str:
        with database.transaction(engine) as connection:
            is_bronze = desired.c.flow == chain.bronze.name
            return connection.execute(select(desired.c.state).where(is_bronze)).scalar_one()

    topic.create().send(*range(3))
    with driver(fast(chain.bronze)) as running_driver:
        wait_for_rows(chain.bronze, 3)
        topic.send(*range(60, 70))
        ask(Action.DRAIN, chain.bronze)
        wait_until(lambda: state() == "stopped", TIMEOUT)
        chain.assert_bronze_holds(topic.messages())
        running_driver.thread.join(TIMEOUT)
        assert not running_driver.thread.is_alive()
        assert running_driver.error is None


def test_a_driver_that_is_to_be_restarted_ends_after_the_batches_in_hand(chain, topic, driver, engine, run_once):
    topic.create().send(*range(3))
    with driver(fast(chain.bronze), fast(chain.silver)) as running_driver:
        wait_for_rows(chain.silver, 3)
        command = Command(
            Action.RESTART, tuple(running_driver.tables), "test", "a fault test", driver=running_driver.name
        )
        commands.execute(engine, command)
        running_driver.thread.join(TIMEOUT)
        assert not running_driver.thread.is_alive()
        assert running_driver.error is None
        assert orders.read(engine, running_driver.name, [chain.bronze.name]).of[chain.bronze.name].state == "running"
    chain.assert_bronze_holds(topic.messages())


@only_in_full_runs
def test_a_batch_in_hand_gives_signs_of_life_while_its_tasks_end_and_none_while_they_hang(
    chain, topic, driver, monkeypatch, tmp_path
):
    """The progress of the query does not change before the batch is complete."""
    tokens = str(tmp_path)

    def take_tokens(rows):
        from pyspark.sql import functions as F

        def took_token() -> bool:
            for token in Path(tokens).iterdir():
                with suppress(FileNotFoundError):
                    token.unlink()
                    return True
            return False

        @F.udf("binary")
        def take_a_token(value):
            wait_until(took_token, TIMEOUT)
            return value

        return rows.withColumn("value", take_a_token("value"))

    monkeypatch.setattr(flow, "SILENT_SECONDS", 0.5)
    monkeypatch.setattr(host, "HEARTBEAT_POLLS", 1)
    topic.create(partitions=8).send(*range(8))
    with driver(fast(chain.bronze, transform=take_tokens)) as running_driver:
        wait_until(lambda: chain.bronze.name in running_driver.host._flows, TIMEOUT)
        bronze_flow = running_driver.host._flows[chain.bronze.name]
        wait_until(lambda: bronze_flow.batch == 0 and bronze_flow.silent_seconds > 8, TIMEOUT)
        (tmp_path / "token").touch()
        wait_until(lambda: bronze_flow.silent_seconds < 4, TIMEOUT)
        assert bronze_flow.query.lastProgress is None
        for number in range(7):
            (tmp_path / str(number)).touch()
        wait_for_rows(chain.bronze, 8)
    chain.assert_bronze_holds(topic.messages())
