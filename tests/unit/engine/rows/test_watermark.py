"""A watermark that the table stores: late rows, repeated rows, and restarts."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from include.delta.delta_log import DeltaLog
from include.engine import commit
from include.engine.rows import watermark
from include.engine.rows.merge_changes import DELETED, TRUNCATES
from include.engine.rows.watermark import EventTimes
from include.lake import locations
from include.ledger.row_outcomes import Batch
from include.rules import Expect
from include.spec import Append, Delta, Flow, Table, Upsert, Watermark
from tests.support.batches import BatchWriter
from tests.support.flows import rows_of

SCHEMA = "view STRING, time TIMESTAMP, place BIGINT"
LATE, AHEAD = "later than 30 minutes", "further ahead than 1440 minutes"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def noon_plus(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


@pytest.fixture
def table() -> Table:
    name = f"t{uuid.uuid4().hex[:12]}"
    return Flow(
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


def stored_watermark(table: Table) -> dict:
    log = DeltaLog(locations.table_path(table.name))
    return log.commit(log.newest).metadata["newest"]


def test_a_row_that_lies_too_far_behind_all_batches_before_is_quarantined_by_name(table, batches):
    batches.write(table, [("a", noon_plus(60), 0), ("b", noon_plus(-600), 1)])
    assert places(table.name) == [0, 1], "within one batch nothing is late"
    watermark_time = noon_plus(30)
    result = batches.write(
        table,
        [("c", watermark_time, 2), ("d", watermark_time - timedelta(microseconds=1), 3), ("e", noon_plus(-500), 4)],
    )
    assert (places(table.name), places(table.quarantine)) == ([0, 1, 2], [3, 4])
    assert {tuple(row["_rules"]) for row in rows_of(table.quarantine)} == {(LATE,)}
    assert (result.read, result.written, result.quarantined, result.broke) == (3, 1, 2, {LATE: 2, AHEAD: 0})


@pytest.mark.parametrize("is_fast", [True, False], ids=["by the fast path", "by Spark's writers"])
def test_both_paths_agree_on_the_row_at_the_watermark_the_row_kept_out_and_the_row_ahead(
    table, batches, spark, is_fast
):
    def write(*rows: tuple) -> Batch:
        # The fast path asks the log of the source how much the batch reads.
        frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
        frame.write.format("delta").mode("append").save(str(locations.table_path(table.source.table)))
        return batches.write(table, list(rows))

    batches.is_fast, batches.planned_at, tick = is_fast, NOON.timestamp(), timedelta(microseconds=1)
    table = replace(table, expect=(Expect("not in March", "time < '2026-03-05'"),))
    day = noon_plus(1_440)
    result = write(("a", noon_plus(60), 0), ("b", day + tick, 1), ("c", noon_plus(9_000), 2))
    assert result.broke == {"not in March": 1, LATE: 0, AHEAD: 2}
    assert stored_watermark(table) == {"time": int(noon_plus(60).timestamp() * 1e6)}, "neither moves it"
    result = write(("d", noon_plus(30), 3), ("e", noon_plus(30) - tick, 4), ("f", day, 5))
    assert (places(table.name), places(table.quarantine)) == ([0, 1, 3, 5], [2, 4])
    assert result.broke == {"not in March": 0, LATE: 1, AHEAD: 0}
    assert stored_watermark(table) == {"time": int(day.timestamp() * 1e6)}, "a day ahead still counts"
    log = DeltaLog(locations.table_path(table.name))
    assert {log.commit(version).metadata["fast_path"] for version in (log.newest, log.newest - 1)} == {is_fast}


def test_a_watermark_that_an_earlier_release_let_run_ahead_comes_back_to_the_rows_of_the_table(table, batches):
    # The checkpoint does not say when the batch was planned, so nothing is too far ahead.
    batches.write(table, [("a", noon_plus(60), 0), ("b", noon_plus(600_000), 1)])
    assert stored_watermark(table) == {"time": int(noon_plus(600_000).timestamp() * 1e6)}
    batches.planned_at = NOON.timestamp()
    batches.write(table, [("c", noon_plus(30), 2), ("d", noon_plus(29), 3)])
    assert (places(table.name), places(table.quarantine)) == ([0, 1, 2], [3])


def test_how_far_ahead_a_row_may_lie_is_declared_and_a_default_changes_no_fingerprint(table, batches):
    assert repr(Watermark("time", 30)) == "Watermark(of='time', minutes=30, late='quarantine')"
    assert repr(Watermark("time", 30, ahead_minutes=5)) == (
        "Watermark(of='time', minutes=30, late='quarantine', ahead_minutes=5)"
    )
    table = replace(table, write=replace(table.write, watermark=Watermark("time", 30, ahead_minutes=5)))
    batches.planned_at = NOON.timestamp()
    batches.write(table, [("a", noon_plus(5), 0), ("b", noon_plus(6), 1)])
    assert stored_watermark(table) == {"time": int(noon_plus(5).timestamp() * 1e6)}


def test_late_rows_are_a_declared_drop_where_that_is_declared(table, batches):
    watermark = Watermark("time", minutes=30, late="drop")
    table = replace(table, write=replace(table.write, watermark=watermark))
    batches.write(table, [("a", noon_plus(60), 0)])
    result = batches.write(table, [("b", noon_plus(0), 1), ("c", noon_plus(60), 2)])
    assert (result.read, result.written, result.dropped) == (2, 1, 1)
    assert places(table.name) == [0, 2]
    assert not (locations.table_path(table.quarantine)).exists()


def test_a_repeated_row_is_found_within_the_minutes_before_and_behind_it(table, batches):
    batches.write(table, [("a", noon_plus(0), 0), ("b", noon_plus(20), 1), ("a", noon_plus(1), 2)])
    result = batches.write(
        table,
        [
            ("a", noon_plus(30), 3),
            ("b", noon_plus(0), 4),
            ("c", noon_plus(0), 5),
            ("a", noon_plus(30) + timedelta(microseconds=1), 6),
        ],
    )
    assert (result.read, result.written, result.duplicates) == (4, 1, 3)
    assert places(table.name) == [0, 1, 5]
    # Rows of one batch are repeated however far apart. Stored rows count within the minutes only.
    assert batches.write(table, [("a", noon_plus(31), 7)]).written == 1
    assert batches.write(table, [("a", noon_plus(31), 8)]).written == 0


def test_a_row_without_a_time_or_a_key_has_no_identity_and_is_never_late(table, batches):
    batches.write(table, [("a", noon_plus(60), 0), ("a", None, 1), (None, noon_plus(60), 2), ("a", None, 3)])
    batches.write(table, [("a", None, 4), (None, noon_plus(60), 5), ("b", None, 6), ("b", noon_plus(60), 7)])
    assert places(table.name) == [0, 1, 2, 3, 4, 5, 6, 7]
    assert stored_watermark(table) == {"time": int(noon_plus(60).timestamp() * 1e6)}


def test_a_row_from_the_future_that_a_rule_keeps_out_makes_nobody_late(table, batches):
    table = replace(table, expect=(Expect("not of the future", "time < '2027-01-01'"),))
    batches.write(table, [("a", noon_plus(0), 0), ("b", noon_plus(600_000), 1)])
    result = batches.write(table, [("c", noon_plus(0), 2)])
    assert (result.written, places(table.quarantine)) == (1, [1])


def test_the_watermark_outlives_driver_and_checkpoint(table, batches):
    batches.write(table, [("a", noon_plus(60), 0)])
    batches.write(table, [("b", noon_plus(29), 1)])
    batches.begin_generation()
    batches.write(table, [("c", noon_plus(29), 2)])
    batches.context = batches.new_context(table)
    batches.write(table, [("d", noon_plus(120), 3), ("e", noon_plus(29), 4)])
    batches.write(table, [("f", noon_plus(89), 5), ("g", noon_plus(90), 6)])
    assert (places(table.name), places(table.quarantine)) == ([0, 3, 6], [1, 2, 4, 5])


def test_a_table_that_had_no_watermark_before_begins_with_the_newest_row_it_holds(table, batches):
    batches.write(replace(table, write=Append()), [("a", noon_plus(60), 0)])
    batches.write(table, [("b", noon_plus(0), 1), ("c", noon_plus(40), 2)])
    assert (places(table.name), places(table.quarantine)) == ([0, 2], [1])


def test_a_batch_that_is_tried_again_comes_out_the_same(table, batches, monkeypatch):
    batches.write(table, [("a", noon_plus(60), 0)])
    rows = [("b", noon_plus(120), 1), ("c", noon_plus(45), 2), ("d", noon_plus(0), 3)]

    def fail(*arguments, **keywords):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(commit, "commit", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            batches.write(table, rows)
    assert (places(table.name), places(table.quarantine)) == ([0], [3])
    for _ in range(2):
        batches.write_again(table, rows)
        assert (places(table.name), places(table.quarantine)) == ([0, 1, 2], [3])


def test_rows_that_were_checked_before_keep_their_rules_and_get_those_of_the_watermark(spark, table):
    times = EventTimes(newest=round(NOON.timestamp() * 1e6), latest=round(noon_plus(60).timestamp() * 1e6))
    rows = [(noon_plus(-30), []), (noon_plus(-31), ["wild"]), (noon_plus(61), ["wild"]), (None, ["wild"])]

    def rules_of(frame: DataFrame, checked: Table) -> list[list[str]]:
        return [row["_rules"] for row in watermark.with_broken(frame, checked, times).collect()]

    checked = spark.createDataFrame(rows, "time TIMESTAMP, _rules ARRAY<STRING>").coalesce(1)
    assert rules_of(checked, table) == [[], ["wild", LATE], ["wild", AHEAD], ["wild"]]
    without = replace(table, write=replace(table.write, watermark=None))
    assert rules_of(checked, without) == [row[1] for row in rows]


def test_a_delete_a_tombstone_and_a_truncate_are_never_late(spark, table):
    write = Upsert(("view",), sequence_by="place", truncates="op = 't'", watermark=Watermark("time", minutes=30))
    merged = replace(table, write=write)
    # The sequence, and whether it deletes a key, or all keys.
    changes = [(1, False, False), (1, True, False), (1, None, None), (1, False, True), (None, False, True)]
    old = spark.createDataFrame(
        [(NOON, *change, []) for change in changes],
        f"time TIMESTAMP, place BIGINT, {DELETED} BOOLEAN, {TRUNCATES} BOOLEAN, _rules ARRAY<STRING>",
    ).coalesce(1)
    times = EventTimes(newest=round(noon_plus(60).timestamp() * 1e6), latest=None)
    found = [row["_rules"] for row in watermark.with_broken(old, merged, times).collect()]
    assert found == [[LATE], [], [], [], [LATE]]
