"""Fixtures for flows over tables with random names, in the shared Spark session."""

import os
import uuid
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession

from include.catalog import Catalog
from include.control.jobs import store, windows
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database
from include.engine.jobs import replay as engine_replay
from include.engine.jobs.replay import ReplayJob
from include.engine.jobs.worker import Worker
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.lake import locations
from include.settings import settings
from include.spec import Table


@pytest.fixture
def name() -> str:
    """A random table name."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def append(spark: SparkSession) -> Callable[[str, list[dict], str], None]:
    """Appends rows with a DDL schema to a stored table, as one file: `append("bronze.x", [{...}], "a INT")`."""

    def write(table: str, rows: list[dict], schema: str) -> None:
        frame = spark.createDataFrame(rows, schema).coalesce(1)
        frame.write.format("delta").mode("append").save(str(locations.table_path(table)))

    return write


@pytest.fixture
def run_once(spark: SparkSession) -> Callable[..., None]:
    """Runs flows to the end of their sources under new leases, as `jobs/stream.py --once` does."""

    def run(*tables: Table) -> None:
        engine = database.connect(settings().control_url)
        lease_renewer = LeaseRenewer(engine, Holder.here("test", jvm_pid()), 30, lambda reason: os.abort())
        flows = [flow for table in tables for flow in table.flows]
        lease_renewer.take([flow.flow for flow in flows])
        lease_renewer.start()
        try:
            Host(spark, engine, lease_renewer, "test").run_once(flows)
        finally:
            lease_renewer.stop()

    return run


@pytest.fixture
def stored(spark: SparkSession) -> Callable[[str], DataFrame]:
    """Returns the current rows of a stored table."""
    return lambda table: spark.read.format("delta").load(str(locations.table_path(table)))


@pytest.fixture
def replay(spark: SparkSession) -> Callable[..., windows.Window]:
    """Replays a quarantine as `jobs/backfill.py` does: `replay(table, "a rule")` returns the window."""
    engine = database.connect(settings().control_url)

    def run_replay(table: Table, *rules: str) -> windows.Window:
        lease_renewer = LeaseRenewer(
            engine, Holder.here(f"replay {table.name}", jvm_pid()), 60, lambda reason: os.abort()
        )
        lease_renewer.start()
        try:
            host, tables = Host(spark, engine, lease_renewer, "replay"), Catalog({table.name: table})
            worker = Worker(engine, lease_renewer, host, spark, tables, lambda reason: os.abort())
            ReplayJob(engine, engine_replay.begin(engine, table, list(rules))).work(worker)
        finally:
            lease_renewer.stop()
        return store.newest(engine, windows.Window, table.name)[0]

    return run_replay
