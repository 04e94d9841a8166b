"""Flows over tables of a test's own, in the shared Spark session."""

import os
import uuid
from collections.abc import Callable
from functools import partial

import pytest
from pyspark.sql import DataFrame, SparkSession

from include.catalog import Catalog
from include.control.jobs import windows
from include.control.lease_renewer import LeaseRenewer
from include.control.process import Holder
from include.control.store import database
from include.engine.jobs import replay as engine_replay
from include.engine.jobs import window
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.settings import settings
from include.spec import Table


@pytest.fixture
def name() -> str:
    """A table name nobody else uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def append(spark: SparkSession) -> Callable[[str, list[dict], str], None]:
    """Appends rows, as a DDL schema, to a stored table, as one file: `append("bronze.x", [{...}], "a INT")`."""

    def write(table: str, rows: list[dict], schema: str) -> None:
        frame = spark.createDataFrame(rows, schema).coalesce(1)
        frame.write.format("delta").mode("append").save(str(settings().table_path(table)))

    return write


@pytest.fixture
def run_once(spark: SparkSession) -> Callable[..., None]:
    """Runs flows to the end of their sources under leases of their own, as `jobs/stream.py --once` does."""

    def run(*tables: Table) -> None:
        engine = database.connect(settings().control_url)
        keeper = LeaseRenewer(engine, Holder.here("test", jvm_pid()), 30, lambda reason: os.abort())
        keeper.take([table.flow for table in tables])
        keeper.start()
        try:
            Host(spark, engine, keeper, "test").run_once(list(tables))
        finally:
            keeper.stop()

    return run


@pytest.fixture
def stored(spark: SparkSession) -> Callable[[str], DataFrame]:
    """A stored table's newest rows."""
    return lambda table: spark.read.format("delta").load(str(settings().table_path(table)))


@pytest.fixture
def replay(spark: SparkSession) -> Callable[..., windows.Window]:
    """What jobs/backfill.py does, in this process: `replay(table, "a rule")`; returns its line in the calendar."""
    engine = database.connect(settings().control_url)

    def work(table: Table, *rules: str) -> windows.Window:
        number = windows.plan(engine, table.name, "a test", "replay quarantine", is_worth_it=True)
        keeper = LeaseRenewer(engine, Holder.here(f"maintain {table.name}", jvm_pid()), 60, lambda reason: os.abort())
        keeper.take(window.leases(table))
        keeper.start()
        try:
            host = Host(spark, engine, keeper, "maintain")
            opened = window.Window(engine, keeper, host, spark, table, Catalog({table.name: table}), number)
            opened.run(lambda reason: os.abort(), partial(engine_replay.replay, rules=list(rules)))
        finally:
            keeper.stop()
        found = windows.find(engine, number)
        assert found
        return found

    return work
