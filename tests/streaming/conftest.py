"""Flows over tables of a test's own, in the shared Spark session."""

import os
import uuid
from collections.abc import Callable

import pytest
from pyspark.sql import DataFrame, SparkSession

from include.control import database
from include.control.keeper import Keeper
from include.control.process import Holder
from include.engine.driver import jvm_pid
from include.engine.host import Host
from include.settings import settings
from include.spec import Table


@pytest.fixture
def name() -> str:
    """A table name nobody else uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def append(spark: SparkSession) -> Callable[[str, list[dict], str], None]:
    """Appends rows, as a DDL schema, to a stored table: `append("bronze.x", [{...}], "a INT")`."""

    def write(table: str, rows: list[dict], schema: str) -> None:
        frame = spark.createDataFrame(rows, schema)
        frame.write.format("delta").mode("append").save(str(settings().table_path(table)))

    return write


@pytest.fixture
def run_once(spark: SparkSession) -> Callable[..., None]:
    """Runs flows to the end of their sources under leases of their own, as `jobs/stream.py --once` does."""

    def run(*tables: Table) -> None:
        engine = database.connect(settings().control_url)
        keeper = Keeper(engine, Holder.here("test", jvm_pid()), 30, lambda reason: os.abort())
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
