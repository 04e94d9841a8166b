"""Both write paths write a batch exactly once, whatever fails in the middle of it."""

import json
from dataclasses import replace

import pytest

from include.errors import FlowFailed
from include.lake import locations
from include.lake.paths import remove_tree
from include.spec import Append, Bucket, Delta, Expect, Flow, Table, Upsert
from tests.support.commits import intercept_commits, switch_fast_path

SOURCE_SCHEMA = "device STRING, time TIMESTAMP, bpm INT, place BIGINT"
SILVER_SCHEMA = "device STRING, time TIMESTAMP, bpm INT, place BIGINT"


@pytest.fixture(autouse=True, params=[False, True], ids=["by Spark's writers", "by the fast path"])
def is_fast(request, monkeypatch) -> bool:
    switch_fast_path(monkeypatch, request.param)
    return request.param


def readings(name: str) -> Table:
    return Flow(
        name=f"silver.{name}",
        comment="readings of a test",
        source=Delta(f"bronze.{name}"),
        schema=SILVER_SCHEMA,
        write=Append(unique=("device", "time"), first_by=("place",)),
        expect=(Expect("plausible", "bpm BETWEEN 20 AND 250"),),
    )


def per_minute(name: str) -> Table:
    def transform(rows):
        from pyspark.sql import functions as F

        return rows.groupBy("device", "minute").agg(F.count("*").alias("readings"), F.max("bpm").alias("most"))

    return Flow(
        name=f"gold.{name}",
        comment="readings by minute",
        source=Delta(f"silver.{name}"),
        schema="device STRING, minute TIMESTAMP, readings BIGINT, most INT",
        transform=transform,
        write=Upsert(keys=("device", "minute"), recompute=Bucket("minute", of="time", unit="minute")),
    )


@pytest.fixture
def arrive(append, name):
    """Appends rows (device, time, bpm) to bronze in one commit, in this order."""
    place_numbers = iter(range(1_000_000))

    def add(*rows: tuple) -> None:
        from datetime import UTC, datetime

        records = [
            {"device": device, "time": time and datetime.fromisoformat(time).replace(tzinfo=UTC), "bpm": bpm}
            | {"place": next(place_numbers)}
            for device, time, bpm in rows
        ]
        append(f"bronze.{name}", records, SOURCE_SCHEMA)

    return add


def text_rows(frame, *columns: str) -> list[tuple]:
    """The rows as tuples of text, sorted."""
    rows = [tuple(str(value) if value is not None else "" for value in row) for row in frame.select(*columns).collect()]
    return sorted(rows)


def test_a_reading_sent_again_counts_once_and_the_first_one_stays(arrive, run_once, stored, name):
    arrive(("a", "2026-03-01T12:00:01", 60), ("a", "2026-03-01T12:00:01", 61), ("b", "2026-03-01T12:00:01", 62))
    run_once(readings(name))
    arrive(("a", "2026-03-01T12:00:01", 99), ("a", "2026-03-01T12:00:02", 63))
    run_once(readings(name))
    assert text_rows(stored(f"silver.{name}"), "device", "bpm") == [("a", "60"), ("a", "63"), ("b", "62")]


def test_a_reading_that_is_hours_late_corrects_the_aggregate(arrive, run_once, stored, name):
    arrive(("a", "2026-03-01T12:00:01", 60), ("a", "2026-03-01T18:00:00", 70))
    run_once(readings(name), per_minute(name))
    arrive(("a", "2026-03-01T12:00:59", 90))
    run_once(readings(name), per_minute(name))
    assert text_rows(stored(f"gold.{name}"), "device", "minute", "readings", "most") == [
        ("a", "2026-03-01 12:00:00", "2", "90"),
        ("a", "2026-03-01 18:00:00", "1", "70"),
    ]


def test_a_row_that_breaks_a_rule_is_quarantined_with_its_reasons(arrive, run_once, stored, name):
    arrive(("a", "2026-03-01T12:00:01", 400), ("a", "2026-03-01T12:00:02", None), ("a", "2026-03-01T12:00:03", 60))
    run_once(readings(name))
    assert text_rows(stored(f"silver.{name}"), "bpm") == [("60",)]
    quarantine = stored(f"quarantine.silver_{name}")
    assert text_rows(quarantine, "bpm", "_rules", "_flow", "_generation", "_batch") == [
        ("", "['plausible']", f"silver.{name}", "1", "0"),
        ("400", "['plausible']", f"silver.{name}", "1", "0"),
    ]


def test_a_batch_that_fails_between_quarantine_and_target_is_written_once(arrive, run_once, stored, name, monkeypatch):
    arrive(("a", "2026-03-01T12:00:01", 400), ("a", "2026-03-01T12:00:02", 60))

    def fail(*arguments, **options):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        intercept_commits(patched, fail)
        with pytest.raises(FlowFailed, match="the disk is gone"):
            run_once(readings(name))
    assert text_rows(stored(f"quarantine.silver_{name}"), "bpm") == [("400",)]
    assert stored(f"silver.{name}").count() == 0
    run_once(readings(name))
    assert text_rows(stored(f"quarantine.silver_{name}"), "bpm") == [("400",)]
    assert text_rows(stored(f"silver.{name}"), "bpm") == [("60",)]


def test_a_rule_mended_before_the_replay_moves_the_row_out_of_quarantine(arrive, run_once, stored, name, monkeypatch):
    arrive(("a", "2026-03-01T12:00:01", 300), ("a", "2026-03-01T12:00:02", 60))

    def fail(*arguments, **options):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        intercept_commits(patched, fail)
        with pytest.raises(FlowFailed):
            run_once(readings(name))
    run_once(replace(readings(name), expect=(Expect("plausible", "bpm < 350"),)))
    assert stored(f"quarantine.silver_{name}").count() == 0
    assert text_rows(stored(f"silver.{name}"), "bpm") == [("300",), ("60",)]


@pytest.mark.parametrize("layer", ["silver", "gold"])
def test_a_batch_committed_to_the_table_but_not_to_the_checkpoint_is_not_written_again(
    arrive, run_once, stored, name, layer
):
    arrive(("a", "2026-03-01T12:00:01", 60), ("a", "2026-03-01T12:00:02", 400))
    run_once(readings(name), per_minute(name))
    commits = locations.checkpoints(f"{layer}.{name}") / "1" / "commits"
    for file in (commits / "0", commits / ".0.crc"):
        file.unlink(missing_ok=True)
    arrive(("a", "2026-03-01T12:00:03", 61))
    run_once(readings(name), per_minute(name))
    assert text_rows(stored(f"silver.{name}"), "bpm") == [("60",), ("61",)]
    assert text_rows(stored(f"quarantine.silver_{name}"), "bpm") == [("400",)]
    assert text_rows(stored(f"gold.{name}"), "readings", "most") == [("2", "61")]


def test_every_commit_says_which_batch_it_is(arrive, run_once, spark, name, is_fast):
    arrive(("a", "2026-03-01T12:00:01", 60))
    run_once(readings(name), per_minute(name))
    for layer in ("silver", "gold"):
        history = spark.sql(f"DESCRIBE HISTORY delta.`{locations.table_path(f'{layer}.{name}')}`")
        metadata = json.loads(history.orderBy("version", ascending=False).first().userMetadata)
        assert (metadata["flow"], metadata["generation"], metadata["batch"]) == (
            f"{layer}.{name}",
            1,
            0,
        )
        assert metadata["epoch"] >= 1
        assert metadata["fast_path"] == is_fast
        assert metadata["source_from"] is None
        assert metadata["source_to"]["reservoirVersion"] >= 1


def test_a_flow_whose_checkpoint_was_deleted_is_refused_instead_of_doubling_its_rows(arrive, run_once, stored, name):
    arrive(("a", "2026-03-01T12:00:01", 60))
    run_once(readings(name))
    remove_tree(locations.checkpoints(f"silver.{name}") / "1")
    with pytest.raises(FlowFailed, match="write rows twice: restore that directory"):
        run_once(readings(name))
    assert stored(f"silver.{name}").count() == 1


def test_a_flow_whose_table_was_deleted_is_refused_instead_of_losing_its_rows(arrive, run_once, name):
    arrive(("a", "2026-03-01T12:00:01", 60))
    run_once(readings(name))
    remove_tree(locations.table_path(f"silver.{name}"))
    with pytest.raises(FlowFailed, match="leave rows out: restore the table"):
        run_once(readings(name))


def test_a_flow_pointed_at_another_source_is_refused(arrive, run_once, name):
    arrive(("a", "2026-03-01T12:00:01", 60))
    run_once(readings(name))
    with pytest.raises(FlowFailed, match=f"belongs to .*{name}.*, not to .*bronze.another"):
        run_once(replace(readings(name), source=Delta("bronze.another")))


def test_a_row_without_its_key_is_never_taken_for_a_repeated_one(arrive, run_once, stored, name):
    arrive((None, "2026-03-01T12:00:01", 60), (None, "2026-03-01T12:00:01", 61), ("a", None, 62))
    run_once(readings(name))
    arrive((None, "2026-03-01T12:00:01", 60), ("a", None, 62))
    run_once(readings(name))
    assert text_rows(stored(f"silver.{name}"), "bpm") == [("60",), ("60",), ("61",), ("62",), ("62",)]


def test_a_batch_that_changes_no_aggregate_does_not_stop_the_flow(arrive, run_once, stored, name):
    def max_bpm(rows):
        from pyspark.sql import functions as F

        return rows.groupBy("device", "minute").agg(F.max("bpm").alias("most"))

    gold = replace(per_minute(name), schema="device STRING, minute TIMESTAMP, most INT", transform=max_bpm)
    arrive(("a", "2026-03-01T12:00:01", 60))
    run_once(readings(name), gold)
    for second, bpm in ((2, 50), (3, 70)):
        arrive(("a", f"2026-03-01T12:00:0{second}", bpm))
        run_once(readings(name), gold)
    assert text_rows(stored(f"gold.{name}"), "most") == [("70",)]


def test_a_table_without_rules_or_keys_is_shaped_too(arrive, run_once, stored, name):
    def double_bpm(rows):
        return rows.selectExpr("device", "bpm * 2 AS twice")

    table = Flow(
        name=f"silver.{name}",
        comment="twice",
        source=Delta(f"bronze.{name}"),
        schema="device STRING, twice INT",
        transform=double_bpm,
    )
    arrive(("a", "2026-03-01T12:00:01", 60))
    run_once(table)
    assert text_rows(stored(f"silver.{name}"), "device", "twice") == [("a", "120")]
