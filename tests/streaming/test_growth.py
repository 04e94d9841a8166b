"""A driver that starts flows and writes batches for weeks holds no more than on its first day.

`make soak` runs the tests at full length, with their figures: 300 starts, 10,000 batches and a million deletes.
SLUICE_SOAK_STARTS and SLUICE_SOAK_BATCHES set other numbers.
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from include.control.flows import orders
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database
from include.engine.fast_path import data_file, transaction
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.errors import FlowFailed
from include.lake import locations
from include.settings import settings
from include.spec import Delta, Expect, Flow, Kafka, Table, Upsert
from tests.support import footprint
from tests.support.flows import FULL, only_in_full_runs, rows_of
from tests.support.footprint import Footprint
from tests.support.topic import Topic
from tests.support.waiting import wait_until

# Each is a flow that drains, one that fails and one that is stopped.
ROUNDS = int(os.environ.get("SLUICE_SOAK_STARTS", "300")) // 3 if FULL else 2
BATCHES = int(os.environ.get("SLUICE_SOAK_BATCHES", "10000"))
SAMPLES = 10
# In each batch: half of them new keys, half of them deletes of keys that came this many keys earlier.
CHANGES, KEPT_KEYS = 200, 1_000
SCHEMA = "id INT, v INT, gone BOOLEAN"


@dataclass(frozen=True)
class OwnDriver:
    """A driver by hand, whose flows a test starts and ends."""

    host: Host
    renewer: LeaseRenewer

    def run_once(self, table: Table) -> None:
        self.renewer.take([table.flow])
        self.host.run_once([table])

    def start_and_stop(self, table: Table) -> None:
        """Starts the flow, and stops it after its first batch, as an order does."""
        self.renewer.take([table.flow])
        order = orders.read(self.host._engine, "test", [table.flow]).of[table.flow]
        assert self.host._start(table.flow, order, once=False, table=table) is None
        running = self.host._flows[table.flow]
        wait_until(lambda: running.batch is not None and not running.query.status["isTriggerActive"], 60)
        running.end()
        wait_until(lambda: not running.is_alive, 60)
        assert self.host._close(table.flow) is None


@pytest.fixture
def driver(spark):
    engine = database.connect(settings().control_url)
    renewer = LeaseRenewer(engine, Holder.here("test", jvm_pid()), 60, lambda reason: os.abort())
    renewer.start()
    host = Host(spark, engine, renewer, "test")
    yield OwnDriver(host, renewer)
    host.end()
    renewer.stop()


def test_a_flow_that_has_ended_leaves_nothing_in_either_process(spark, driver, name, append, caplog):
    # pytest keeps what py4j logs, with the frames of the error.
    caplog.set_level(logging.CRITICAL, "py4j")
    table = Flow(
        name=f"silver.{name}",
        comment="latest rows",
        source=Delta(f"bronze.{name}"),
        schema="id INT, v INT",
        write=Upsert(("id",), sequence_by="v", deletes="gone"),
    )
    failing = replace(table, expect=(Expect("never", "v < 0", otherwise="fail"),))
    values = iter(range(1_000_000))

    def arrive(gone: bool) -> None:
        append(f"bronze.{name}", [{"id": key, "v": next(values), "gone": gone} for key in range(50)], SCHEMA)

    def start_each() -> None:
        arrive(gone=False)
        with pytest.raises(FlowFailed):
            driver.run_once(failing)
        driver.run_once(table)
        arrive(gone=True)
        driver.start_and_stop(table)

    start_each()
    first = footprint.settled(spark)
    print(f"after 3 starts: {first}", flush=True)
    for number in range(2, ROUNDS + 1):
        start_each()
        if number % 10 == 0:
            print(f"after {3 * number} starts: {footprint.measure(spark)}", flush=True)
    last = footprint.settled(spark)
    print(f"after {3 * ROUNDS} starts: {last}", flush=True)
    assert last.owns_no_more_than(first), f"{first}\n{last}"
    assert last.flows == 0
    assert last.gateway_objects <= first.gateway_objects + 5
    assert last.jvm_files <= first.jvm_files + 5
    if FULL:
        assert last.heap_mb < first.heap_mb + 20
        assert last.python_objects < first.python_objects * 1.02


def test_of_the_commits_of_a_driver_memory_keeps_those_since_a_checkpoint(spark, name, monkeypatch):
    """Delta walks through these at each commit: the cost of a batch would grow with the age of its driver."""
    monkeypatch.setattr(transaction, "COMMITS_BETWEEN_LISTINGS", 5)
    path = locations.table_path(f"silver.{name}")
    properties = "'delta.checkpointInterval' = '5'"
    spark.sql(f"CREATE TABLE delta.`{path}` (id BIGINT) USING delta TBLPROPERTIES ({properties})")
    target = transaction.Target(spark, f"silver.{name}")
    for number in range(23):
        commit = target.begin()
        file = data_file.write([pa.table({"id": [number]})], target.path, commit.layout)
        commit.append([file.added()], "{}", None, 1, reads=False)
    segment = target._log.unsafeVolatileSnapshot().logSegment()
    assert segment.version() == 23
    assert segment.deltas().size() <= 10


def changes(rows):
    parts = "split(CAST(value AS STRING), ',')"
    fields = (f"CAST({parts}[0] AS BIGINT) AS id", "offset AS place", f"{parts}[1] = 'gone' AS gone")
    return rows.selectExpr(*fields)


@only_in_full_runs
def test_batches_and_deletes_leave_heap_and_cost_of_a_batch_as_they_were(spark, driver, name, broker):
    topic = Topic(broker).create()
    send_changes(topic)
    bronze = Flow(name=f"bronze.{name}", comment="as it came", source=Kafka(topic.name, max_offsets=CHANGES))
    silver = Flow(
        name=f"silver.{name}",
        comment="latest rows",
        source=Delta(bronze.name, max_files=1),
        schema="id BIGINT, place BIGINT",
        transform=changes,
        write=Upsert(("id",), sequence_by="place", deletes="gone"),
    )
    for table in (bronze, silver):
        samples = sampled(spark, driver, table, lambda table=table: driver.run_once(table))
        # The first ones warm up.
        early, late = samples[1:4], samples[-3:]
        assert late[-1][0].owns_no_more_than(early[0][0]), f"{early[0][0]}\n{late[-1][0]}"
        assert late[-1][0].heap_mb < early[-1][0].heap_mb * 1.2 + 20
        assert late[-1][0].python_objects < early[-1][0].python_objects * 1.05
        assert sum(cost for _, cost in late) < 1.5 * sum(cost for _, cost in early)
    assert len(rows_of(silver.name)) == KEPT_KEYS


def send_changes(topic: Topic) -> None:
    producer = Producer({"bootstrap.servers": topic.servers, "linger.ms": 50, "queue.buffering.max.messages": 10**6})
    for key in range(BATCHES * CHANGES // 2):
        for value in (f"{key},new", f"{key - KEPT_KEYS},gone"):
            producer.produce(topic.name, value.encode())
        producer.poll(0)
        if key % 100_000 == 0:
            producer.flush()
    producer.flush()


def sampled(
    spark: SparkSession, driver: OwnDriver, table: Table, run: Callable[[], None]
) -> list[tuple[Footprint, float]]:
    """Runs the flow, and measures it at regular batches.

    Returns what was held, and the CPU time of a batch as a multiple of that of a fixed piece of work at that moment.
    """
    errors: list[BaseException] = []

    def run_and_keep_error() -> None:
        try:
            run()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run_and_keep_error)
    thread.start()
    samples: list[tuple[Footprint, float]] = []
    batch, cpu_seconds = 0, footprint.cpu_seconds()
    while thread.is_alive():
        running = driver.host._flows.get(table.flow)
        if running and (running.batch or 0) - batch >= BATCHES // SAMPLES:
            cost = (footprint.cpu_seconds() - cpu_seconds) / (running.batch - batch)
            fixed = footprint.fixed_work_cpu_seconds()
            samples.append((footprint.measure(spark), cost / fixed))
            costs = f"{cost:.3f} CPU-s a batch, {fixed * 1000:.1f} CPU-ms of fixed work"
            print(f"{table.name}, batch {running.batch}: {costs}, {samples[-1][0]}", flush=True)
            batch, cpu_seconds = running.batch, footprint.cpu_seconds()
        thread.join(0.05)
    assert not errors, errors
    return samples
