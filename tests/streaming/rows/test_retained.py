"""Retained changes: what is kept of a delete, for how long, and when it is stored."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions as F

from include.delta import stored_table
from include.engine.tables import create_table, retained
from include.lake import locations
from include.spec import Delta, Flow, Table, Upsert, Watermark
from tests.support.commits import intercept_commits
from tests.support.flows import rows_of
from tests.support.twins import Source, Twin

COLUMNS = "id INT, place STRING, at TIMESTAMP, seq INT, op STRING"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATEST = Upsert(("id",), sequence_by="seq", deletes="op = 'd'")
both_paths = pytest.mark.parametrize("is_fast", [True, False], ids=["fast path", "spark"])


def change(key: int, place: str | None, sequence: int, operation: str = "u", minute: float = 0) -> tuple:
    return key, place, NOON + timedelta(minutes=minute), sequence, operation


class MergedFlow:
    """A flow that merges batches of changes."""

    def __init__(self, spark, name: str, home, write: Upsert, is_fast: bool) -> None:
        self.source = Source(spark, f"bronze.{name}", COLUMNS)
        self.table = Flow(
            name=f"silver.{name}",
            comment="places",
            source=Delta(f"bronze.{name}"),
            schema="id INT, place STRING, at TIMESTAMP, seq INT",
            write=write,
        )
        self.spark, self.home, self.is_fast = spark, home, is_fast
        self.number = -1
        self.twin: Twin | None = None

    def write(self, *changes: tuple) -> None:
        self.number += 1
        frame = self.source.append(list(changes))
        self.twin = self.twin or Twin(self.spark, self.home / "checkpoint", self.table, self.is_fast)
        self.twin.write(frame, self.number)
        assert self.twin.newest.metadata["fast_path"] == self.is_fast

    @property
    def places(self) -> dict[int, str]:
        return {row["id"]: row["place"] for row in rows_of(self.table.name)}

    @property
    def retained(self) -> list[dict]:
        return [
            {key: value for key, value in row.items() if not key.startswith(("_flow", "_gen", "_batch", "_so", "_re"))}
            for row in rows_of(self.table.retained)
        ]


@both_paths
def test_of_a_delete_its_key_and_place_are_kept_and_nothing_of_the_row_before(spark, name, tmp_path, is_fast):
    flow = MergedFlow(spark, name, tmp_path, LATEST, is_fast)
    flow.write(change(1, "north", 1), change(2, "south", 1))
    flow.write(change(1, "north", 5, "d"))
    flow.write(change(1, "east", 3), change(1, "a repetition", 5, "d"))
    assert flow.places == {2: "south"}
    assert flow.retained == [{"id": 1, "seq": 5, "_deleted": True}]


@both_paths
def test_a_history_keeps_changes_within_a_row_and_of_deletes_no_values(spark, name, tmp_path, is_fast):
    flow = MergedFlow(spark, name, tmp_path, replace(LATEST, scd=2, tracked=("place",)), is_fast)
    flow.write(change(1, "north", 1), change(1, "north", 2, minute=1), change(1, "north", 9, "d"))
    kept = sorted(flow.retained, key=lambda row: row["seq"])
    assert kept == [
        {"id": 1, "place": "north", "at": NOON, "seq": 1, "_deleted": False},
        {"id": 1, "place": None, "at": None, "seq": 9, "_deleted": True},
    ]


@both_paths
def test_retained_changes_are_stored_before_the_rows_of_their_batch(spark, name, tmp_path, monkeypatch, is_fast):
    """A kill in between leaves no trace then. The other way round it would lose the delete."""
    flow = MergedFlow(spark, name, tmp_path, LATEST, is_fast)
    flow.write(change(1, "north", 1))
    seen = []

    def look(table: Table, commit) -> None:
        seen.append((len(rows_of(table.retained)), len(rows_of(table.name))))
        commit()

    intercept_commits(monkeypatch, look)
    flow.write(change(1, None, 5, "d"))
    assert seen == [(1, 1)]
    assert flow.places == {}


@both_paths
def test_deletes_of_an_earlier_generation_count(spark, name, tmp_path, is_fast):
    flow = MergedFlow(spark, name, tmp_path, LATEST, is_fast)
    flow.write(change(1, "north", 1))
    flow.write(change(1, None, 5, "d"), change(2, None, 5, "d"))
    assert flow.twin
    flow.twin.begin_generation(flow.number + 1)
    flow.write(change(1, "east", 3), change(2, "east", 6))
    assert flow.places == {2: "east"}


def test_retained_rows_of_older_releases_lose_their_values_and_count_as_before(spark, name, tmp_path):
    flow = MergedFlow(spark, name, tmp_path, LATEST, is_fast=True)
    flow.write(change(1, "north", 1), change(2, "south", 1))
    path = str(locations.table_path(flow.table.retained))
    older = spark.createDataFrame([change(1, "whole row", 5)[:4]], "id INT, place STRING, at TIMESTAMP, seq INT")
    older = older.withColumns({"_deleted": F.lit(True), "_flow": F.lit(flow.table.flow), "_generation": F.lit(1)})
    older = older.withColumns({"_batch": F.lit(0).cast("bigint"), "_source": F.lit("{}")})
    older.withColumn("_replay", F.lit(None).cast("bigint")).write.format("delta").mode("overwrite").option(
        "overwriteSchema", "true"
    ).save(path)
    spark.sql(
        f"MERGE INTO delta.`{locations.table_path(flow.table.name)}` USING (SELECT 1) ON id = 1 "
        "WHEN MATCHED THEN DELETE"
    )
    create_table.create(spark, flow.table)
    assert [(row["place"], row["at"], row["seq"]) for row in rows_of(flow.table.retained)] == [(None, None, 5)]
    version = stored_table.open_table(flow.table.retained).version()
    create_table.create(spark, flow.table)
    assert stored_table.open_table(flow.table.retained).version() == version
    assert flow.twin
    flow.twin.start(1)
    flow.write(change(1, "late", 3), change(3, "north", 9, "d"), change(2, "west", 2))
    assert flow.places == {2: "west"}
    assert sorted((row["id"], row["place"]) for row in rows_of(flow.table.retained)) == [(1, None), (3, None)]


@both_paths
def test_a_forgotten_delete_never_returns_because_an_earlier_change_is_late(
    spark, name, tmp_path, monkeypatch, is_fast
):
    monkeypatch.setattr(retained, "FEWEST_ROWS", 1)
    flow = MergedFlow(spark, name, tmp_path, replace(LATEST, watermark=Watermark("at", 10)), is_fast)
    flow.write(change(1, "north", 1), change(2, "south", 1), change(5, "west", 1))
    flow.write(change(1, None, 5, "d", minute=1), change(2, None, 5, "d", minute=30), change(3, "east", 2, minute=40))
    assert flow.retained[0].keys() == {"id", "seq", "at", "_deleted"}
    assert flow.twin
    context = flow.twin.context
    assert retained.forget_late(spark, flow.table, context.newest, {"forgets": "x"})
    assert [row["id"] for row in rows_of(flow.table.retained)] == [2]
    assert not retained.forget_late(spark, flow.table, context.newest, {"forgets": "x"})
    # The first two are from before the deletes of their keys. A late delete still deletes.
    flow.write(
        change(1, "late", 3, minute=0.5),
        change(2, "in time", 4, minute=30),
        change(4, "late", 1, minute=29),
        change(5, None, 2, "d", minute=2),
    )
    assert flow.places == {3: "east"}
    late = [(row["id"], row["place"], row["_rules"]) for row in rows_of(flow.table.quarantine)]
    assert sorted(late) == [(1, "late", ["later than 10 minutes"]), (4, "late", ["later than 10 minutes"])]
    assert flow.twin.newest.metadata["rows"]["broke"]["later than 10 minutes"] == 2
    assert flow.twin.newest.metadata["newest"] == context.newest or flow.twin.newest.metadata["newest"]["at"]


def test_a_batch_reads_the_retained_changes_once_and_then_finds_them_by_key(spark, name, tmp_path, monkeypatch):
    flow = MergedFlow(spark, name, tmp_path, LATEST, is_fast=True)
    flow.write(*[change(key, None, 5, "d") for key in range(100)])
    reads = []
    dataset = stored_table.dataset

    def count(table: str, *arguments, **options):
        reads.append(table)
        return dataset(table, *arguments, **options)

    flow.write(change(7, "late", 3), change(200, None, 1, "d"))
    monkeypatch.setattr(stored_table, "dataset", count)
    for number in range(3):
        flow.write(change(number, "late", 3), change(200, "late", 0), change(300 + number, None, 1, "d"))
    assert flow.table.retained not in reads
    assert flow.places == {}
    monkeypatch.undo()
    assert len(rows_of(flow.table.retained)) == 104
