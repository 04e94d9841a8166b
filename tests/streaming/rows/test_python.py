"""Transforms that run Arrow and pandas functions, within their limits."""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F

from include.errors import FlowBroken, FlowFailed
from include.flows import resume_position
from include.lake import locations
from include.rules import FAILED
from include.spec import Delta, Expect, Flow, PythonLimits, Table
from tests.support.batches import BatchWriter
from tests.support.flows import rows_of
from tests.support.waiting import wait_until

SOURCE = "topic STRING, partition INT, offset BIGINT, bpm BIGINT"
MB = 1_000_000
# As the session does for table files: Python processes cannot import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def arrive(spark, name: str, *values: int) -> None:
    """Appends rows to bronze in two files, which are partitions of the batch: even offsets before odd ones."""
    rows = [("beats", 0, offset, value) for offset, value in enumerate(values)]
    for part in (rows[::2], rows[1::2]):
        frame = spark.createDataFrame(part, SOURCE).coalesce(1)
        frame.write.format("delta").mode("append").save(str(locations.table_path(f"bronze.{name}")))


def arrow(function):
    """A transform that replaces `bpm` by what an Arrow function makes of it."""
    return lambda rows: rows.withColumn("bpm", F.arrow_udf(function, "bigint")("bpm"))


def python_table(name: str, transform, limits: PythonLimits | None = None, **options) -> Table:
    return Flow(
        name=f"silver.{name}",
        comment="",
        source=Delta(f"bronze.{name}"),
        schema="offset BIGINT, bpm BIGINT",
        transform=transform,
        python=limits or PythonLimits(),
        **options,
    )


def double(values: pa.Array) -> pa.Array:
    return pc.multiply(values, 2)


@pytest.fixture
def table_module(name, monkeypatch) -> ModuleType:
    """A module in the place of a table file, with a function that a transform calls. No process can import it."""
    module = ModuleType(f"include.tables.silver.{name}")
    exec("def halve(values):\n    return values // 2", module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def tenfold(rows, halve):
    def double_batches(batches):
        for batch in batches:
            yield batch.set_column(1, "bpm", double(batch.column("bpm")))

    rows = rows.withColumn("bpm", F.pandas_udf(lambda values: halve(values * 10), "bigint")("bpm"))
    rows = rows.withColumn("bpm", F.arrow_udf(double, "bigint")("bpm"))
    return rows.select("offset", "bpm").mapInArrow(double_batches, "offset BIGINT, bpm BIGINT")


@pytest.mark.parametrize("fast_path", [True, False], ids=["the fast path", "Spark's writers"])
def test_arrow_and_pandas_functions_compute_columns_and_rules_apply_to_them(
    spark, run_once, name, table_module, tmp_path: Path, fast_path: bool
):
    plausible = Expect("plausible", "bpm < 1000")
    table = python_table(name, lambda rows: tenfold(rows, table_module.halve), expect=(plausible,))
    arrive(spark, name, 1, 2, 400)
    if fast_path:
        run_once(table)
    else:
        rows = spark.read.format("delta").load(str(locations.table_path(f"bronze.{name}")))
        BatchWriter(spark, tmp_path, SOURCE).write(table, rows)
    assert sorted((row["offset"], row["bpm"]) for row in rows_of(table.name)) == [(0, 20), (1, 40)]
    assert [row["offset"] for row in rows_of(table.quarantine)] == [2]
    assert bool(resume_position.last_commit_metadata(table).get("fast_path")) is fast_path


def refuse_thirteen(values: pa.Array) -> pa.Array:
    if 13 in values.to_pylist():
        raise ValueError("13 is no heart rate")
    return values


def crash_at_thirteen(values: pa.Array) -> pa.Array:
    if 13 in values.to_pylist():
        os.kill(os.getpid(), signal.SIGSEGV)
    return values


def test_a_row_that_makes_a_function_fail_is_quarantined_with_what_the_function_says(spark, run_once, name):
    arrive(spark, name, 60, 13, *range(60, 66))
    failures = {refuse_thirteen: "ValueError: 13 is no heart rate", crash_at_thirteen: "its process died"}
    for function, cause in failures.items():
        table = replace(python_table(f"{name}_{function.__name__}", arrow(function)), source=Delta(f"bronze.{name}"))
        run_once(table)
        assert sorted(row["offset"] for row in rows_of(table.name)) == [0, 2, 3, 4, 5, 6, 7]
        (row,) = rows_of(table.quarantine)
        assert (row["offset"], row["_rules"], row["_failed_reason"]) == (1, [FAILED], cause)
        assert json.loads(row["_failed_record"]) == {"topic": "beats", "partition": 0, "offset": 1, "bpm": 13}


def fill_600_mb(values: pa.Array) -> pa.Array:
    bytes_of_batch = bytearray(600 * MB)
    return pa.array([len(bytes_of_batch)] * len(values), pa.int64())


def test_a_function_over_its_memory_limit_ends_its_flow_and_another_flow_of_the_session_has_its_own_limit(
    spark, run_once, name
):
    table = python_table(name, arrow(fill_600_mb), PythonLimits(memory_mb=700))
    larger_table = python_table(f"{name}_larger", arrow(fill_600_mb), PythonLimits(memory_mb=1400))
    arrive(spark, name, 60)
    arrive(spark, f"{name}_larger", 60)
    with pytest.raises(FlowBroken) as error:
        run_once(table)
    assert str(error.value) == (
        f"{table.name}: a Python function needs more for batch 0 than its limit of 700 MB (MemoryError): let it use "
        f"less, or allow more, PythonLimits(memory_mb=...), and restart"
    )
    assert rows_of(table.name) == []
    run_once(larger_table)
    assert [row["bpm"] for row in rows_of(larger_table.name)] == [600 * MB]


def test_a_function_that_loops_is_ended_after_its_time_with_its_process(spark, run_once, name, tmp_path: Path):
    pid_file = tmp_path / "pid"

    def loop(values):
        pid_file.write_text(str(os.getpid()))
        while True:
            pass

    table = python_table(name, arrow(loop), PythonLimits(seconds=3))
    arrive(spark, name, 60)
    with pytest.raises(FlowFailed) as error:
        run_once(table)
    assert str(error.value).startswith(
        f"{table.name}: batch 0 was ended after 3 s, the limit of its Python functions: let them do less"
    )
    assert (error.value.error, error.value.needs_person) == ("PYTHON_TIME_LIMIT", False)
    assert rows_of(table.name) == []
    process = Path("/proc") / pid_file.read_text()
    wait_until(lambda: not process.exists(), timeout_seconds=30)
    run_once(python_table(name, arrow(double)))
    assert [row["bpm"] for row in rows_of(table.name)] == [120]


def test_a_failure_that_no_row_repeats_is_tried_again_at_once(spark, run_once, name, tmp_path: Path):
    failed = tmp_path / "failed"

    def fail_once(values):
        if not failed.exists():
            failed.touch()
            raise OSError("the model is not there")
        return values

    table = python_table(name, arrow(fail_once))
    arrive(spark, name, 60)
    run_once(table)
    assert [row["bpm"] for row in rows_of(table.name)] == [60]
    assert not locations.is_stored(table.quarantine)


def test_a_python_function_that_the_check_has_not_seen_is_refused_without_limits_and_computes_rows_within_them(
    spark, run_once, name
):
    arrive(spark, name, 60, 61)
    single = python_table(name, lambda rows: rows.withColumn("bpm", F.udf(double_one, "bigint")("bpm")))
    for transform in (arrow(double), single.transform):
        with pytest.raises(FlowBroken) as error:
            run_once(replace(single, transform=transform, python=None))
        assert error.value.error == "PYTHON_WITHOUT_LIMITS"
        assert str(error.value) == (
            f"{single.name}: its transform runs a Python function without limits: declare them, "
            f"python=PythonLimits(memory_mb=1024, seconds=60), or use Spark's own functions, and restart"
        )
    run_once(replace(single, python=PythonLimits(seconds=20)))
    assert sorted(row["bpm"] for row in rows_of(single.name)) == [120, 122]


def double_one(value):
    return value * 2
