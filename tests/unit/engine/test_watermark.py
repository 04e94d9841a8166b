"""A watermark that lives in the table: what is late, what is a repeated row, and that no restart forgets it."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from include.engine.tables import commit
from include.readers.delta_log import DeltaLog
from include.rules import Expect
from include.settings import settings
from include.spec import Append, Delta, Table, Watermark
from tests.support.batches import BatchWriter
from tests.support.flows import rows_of

SCHEMA = "view STRING, time TIMESTAMP, place BIGINT"
LATE = "later than 30 minutes"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


@pytest.fixture
def table() -> Table:
    name = f"t{uuid.uuid4().hex[:12]}"
    return Table(
        name=f"silver.{name}",
        comment="views",
        source=Delta(f"bronze.{name}"),
        schema=SCHEMA,
        write=Append(unique=("view",), first_by=("place",), watermark=Watermark("time", minutes=30)),
    )


@pytest.fixture
def batches(spark: SparkSession, tmp_path: Path) -> BatchWriter:
    return BatchWriter(spark, tmp_path, SCHEMA)


def places(name: str) -> list[int]:
    return sorted(row["place"] for row in rows_of(name))


def newest(table: Table) -> dict:
    log = DeltaLog(settings().table_path(table.name))
    return log.commit(log.newest).metadata["newest"]


def test_a_row_that_lies_too_far_behind_all_batches_before_is_quarantined_by_name(table, batches):
    batches.write(table, [("a", at(60), 0), ("b", at(-600), 1)])
    assert places(table.name) == [0, 1], "within one batch nothing is late"
    edge = at(30)
    said = batches.write(table, [("c", edge, 2), ("d", edge - timedelta(microseconds=1), 3), ("e", at(-500), 4)])
    assert (places(table.name), places(table.quarantine)) == ([0, 1, 2], [3, 4])
    assert {tuple(row["_rules"]) for row in rows_of(table.quarantine)} == {(LATE,)}
    assert (said.read, said.written, said.quarantined, said.broke) == (3, 1, 2, {LATE: 2})


def test_late_rows_are_a_declared_drop_where_that_is_declared(table, batches):
    watermark = Watermark("time", minutes=30, late="drop")
    table = replace(table, write=replace(table.write, watermark=watermark))
    batches.write(table, [("a", at(60), 0)])
    said = batches.write(table, [("b", at(0), 1), ("c", at(60), 2)])
    assert (said.read, said.written, said.dropped) == (2, 1, 1)
    assert places(table.name) == [0, 2]
    assert not (settings().table_path(table.quarantine)).exists()


def test_a_repeated_row_is_found_within_the_minutes_before_and_behind_it(table, batches):
    batches.write(table, [("a", at(0), 0), ("b", at(20), 1), ("a", at(1), 2)])
    said = batches.write(
        table,
        [
            ("a", at(30), 3),
            ("b", at(0), 4),
            ("c", at(0), 5),
            ("a", at(30) + timedelta(microseconds=1), 6),
        ],
    )
    assert (said.read, said.written, said.duplicates) == (4, 1, 3)
    assert places(table.name) == [0, 1, 5]
    # The rows of one batch are one however far apart; stored ones within the minutes only.
    assert batches.write(table, [("a", at(31), 7)]).written == 1
    assert batches.write(table, [("a", at(31), 8)]).written == 0


def test_a_row_without_a_time_or_a_key_has_no_identity_and_is_never_late(table, batches):
    batches.write(table, [("a", at(60), 0), ("a", None, 1), (None, at(60), 2), ("a", None, 3)])
    batches.write(table, [("a", None, 4), (None, at(60), 5), ("b", None, 6), ("b", at(60), 7)])
    assert places(table.name) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert newest(table) == {"time": int(at(60).timestamp() * 1e6)}


def test_a_row_from_the_future_that_a_rule_keeps_out_makes_nobody_late(table, batches):
    table = replace(table, expect=(Expect("not of the future", "time < '2027-01-01'"),))
    batches.write(table, [("a", at(0), 0), ("b", at(600_000), 1)])
    said = batches.write(table, [("c", at(0), 2)])
    assert (said.written, places(table.quarantine)) == (1, [1])


def test_the_watermark_outlives_driver_and_checkpoint(table, batches):
    batches.write(table, [("a", at(60), 0)])
    batches.write(table, [("b", at(29), 1)])
    batches.begin_generation()
    batches.write(table, [("c", at(29), 2)])
    batches.life = batches.begin_life(table)
    batches.write(table, [("d", at(120), 3), ("e", at(29), 4)])
    batches.write(table, [("f", at(89), 5), ("g", at(90), 6)])
    assert (places(table.name), places(table.quarantine)) == ([0, 3, 6], [1, 2, 4, 5])


def test_a_table_that_had_no_watermark_before_begins_with_the_newest_row_it_holds(table, batches):
    batches.write(replace(table, write=Append()), [("a", at(60), 0)])
    batches.write(table, [("b", at(0), 1), ("c", at(40), 2)])
    assert (places(table.name), places(table.quarantine)) == ([0, 2], [1])


def test_a_batch_that_is_tried_again_comes_out_the_same(table, batches, monkeypatch):
    batches.write(table, [("a", at(60), 0)])
    rows = [("b", at(120), 1), ("c", at(45), 2), ("d", at(0), 3)]

    def fail(*arguments, **named):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(commit, "commit", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            batches.write(table, rows)
    assert (places(table.name), places(table.quarantine)) == ([0], [3])
    for _ in range(2):
        batches.write_again(table, rows)
        assert (places(table.name), places(table.quarantine)) == ([0, 1, 2], [3])
