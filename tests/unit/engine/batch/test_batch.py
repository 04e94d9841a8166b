"""One micro-batch between its source and its commit, on checkpoints that the test writes."""

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from include.engine import commit
from include.engine.batch import batch
from include.engine.batch.batch import FlowContext
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.commit import txn_app_id
from include.engine.rows import prepare
from include.engine.tables import create_table
from include.lake import locations
from include.spec import Append, Delta, Expect, Flow, Table

SCHEMA = "device STRING, time TIMESTAMP, bpm INT, place BIGINT"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def readings() -> Table:
    name = f"t{uuid.uuid4().hex[:12]}"
    return Flow(
        name=f"silver.{name}",
        comment="readings of a test",
        source=Delta(f"bronze.{name}"),
        schema=SCHEMA,
        write=Append(unique=("device", "time"), first_by=("place",)),
        expect=(Expect("plausible", "bpm <= 200"),),
    )


@pytest.fixture
def write(spark: SparkSession, tmp_path: Path) -> Callable[..., None]:
    """Returns `write(table, batch, rows)`, which writes as a driver that starts with that batch."""
    (tmp_path / "offsets").mkdir()

    def write_batch(table: Table, number: int, rows: list[tuple]) -> None:
        create_table.create(spark, table)
        offset = {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": number + 1, "index": -1}
        text = f"v1\n{{}}\n{json.dumps({**offset, 'isStartingVersion': False})}"
        (tmp_path / "offsets" / str(number)).write_text(text)
        app_id = txn_app_id(table.name, 1)
        newest_batch = DeltaTable(str(locations.table_path(table.name))).transaction_version(app_id)
        written, last_commit = (-1, None) if newest_batch is None else (newest_batch, (1, newest_batch))
        checkpoint = Checkpoint(tmp_path, 1, committed=number - 1, written=written, last_commit=last_commit, source={})
        context = FlowContext(table, checkpoint, epoch=1)
        batch.write(spark.createDataFrame(rows, SCHEMA), number, context)

    return write_batch


def read_table(spark: SparkSession, name: str) -> DataFrame:
    return spark.read.format("delta").load(str(locations.table_path(name)))


def places(spark: SparkSession, name: str) -> list[int]:
    return sorted(row.place for row in read_table(spark, name).collect())


def test_every_row_of_a_batch_ends_in_the_table_or_in_its_quarantine(spark, readings, write):
    write(readings, 0, [("a", NOON, 60, 0), ("b", NOON, 300, 1), ("c", NOON, None, 2)])
    assert places(spark, readings.name) == [0]
    assert places(spark, readings.quarantine) == [1, 2]


def test_a_first_batch_of_unknown_size_is_computed_by_generated_code(spark, readings, write):
    prepare.tune(spark, expected_rows=0)
    write(readings, 0, [("a", NOON, 60, 0)])
    assert spark.conf.get("spark.sql.codegen.factoryMode", "FALLBACK") != "NO_CODEGEN"


def test_a_batch_that_is_written_again_leaves_the_tables_as_after_the_first_time(spark, readings, write):
    for _ in range(2):
        write(readings, 0, [("a", NOON, 60, 0), ("b", NOON, 300, 1)])
    assert places(spark, readings.name) == [0]
    assert places(spark, readings.quarantine) == [1]


def test_a_batch_that_is_tried_again_leaves_the_broken_rows_of_the_batch_before(spark, readings, write, monkeypatch):
    write(readings, 0, [("a", NOON, 60, 0), ("b", NOON, 300, 1)])

    def fail(*arguments, **keywords):
        raise OSError("the disk is gone")

    second_rows = [("c", NOON, 60, 2), ("d", NOON, 300, 3)]
    with monkeypatch.context() as patch:
        patch.setattr(commit, "commit", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            write(readings, 1, second_rows)
    write(readings, 1, second_rows)
    assert places(spark, readings.name) == [0, 2]
    assert places(spark, readings.quarantine) == [1, 3]


@pytest.mark.parametrize(("condition", "what"), [("bpm <= 350", "lost"), ("bpm <= 50", "doubled")])
def test_a_rule_that_changed_before_the_replay_of_a_committed_batch_moves_no_row(
    spark, readings, write, condition: str, what: str
):
    rows = [("a", NOON, 60, 0), ("b", NOON, 300, 1)]
    write(readings, 0, rows)
    # The driver dies before Spark acknowledges the batch, and restarts with another rule.
    write(replace(readings, expect=(Expect("plausible", condition),)), 0, rows)
    all_places = places(spark, readings.name) + places(spark, readings.quarantine)
    assert sorted(all_places) == [0, 1], f"a row was {what}"


def test_a_reading_without_a_time_has_no_identity_and_always_counts(spark, readings, write):
    table = replace(readings, expect=())
    write(table, 0, [("a", None, 60, 0), ("a", NOON, 60, 1)])
    write(table, 1, [("a", None, 60, 2), ("a", NOON, 60, 3)])
    assert places(spark, table.name) == [0, 1, 2]


def halve_bpm(rows):
    from pyspark.sql import functions as F

    return rows.withColumn("bpm", (F.col("bpm") / 2).cast("int"))


def test_a_table_with_nothing_but_a_transform_gets_its_transform(spark, readings, write):
    table = replace(readings, expect=(), write=Append(), transform=halve_bpm)
    write(table, 0, [("a", NOON, 60, 0)])
    assert [row.bpm for row in read_table(spark, table.name).collect()] == [30]


def test_a_rule_that_cannot_be_computed_for_a_row_is_broken_by_that_row(spark, readings, write):
    table = replace(readings, expect=(Expect("ratio", "100 / bpm < 10"),))
    write(table, 0, [("a", NOON, 60, 0), ("b", NOON, 0, 1)])
    assert places(spark, table.name) == [0]
    assert places(spark, table.quarantine) == [1]
