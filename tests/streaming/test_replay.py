"""Mended rows go from the quarantine into their table exactly once, whatever happens in the middle of it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from include.catalog import Catalog
from include.engine.jobs import replay as engine_replay
from include.engine.tables import commit
from include.errors import FlowFailed, UsageError
from include.readers.delta_log import DeltaLog
from include.rules import Expect, unique
from include.settings import settings
from include.spec import Append, Delta, Table, Watermark
from tests.support.batches import BatchWriter
from tests.support.flows import only_in_full_runs, rows_of

SCHEMA = "device STRING, time TIMESTAMP, bpm INT, place BIGINT"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATE = "later than 30 minutes"


@pytest.fixture
def table(name: str) -> Table:
    return Table(
        name=f"silver.{name}",
        comment="readings",
        source=Delta(f"bronze.{name}"),
        schema=SCHEMA,
        write=Append(unique=("device", "time"), first_by=("place",)),
        expect=(Expect("plausible", "bpm < 250"), Expect("identified", "device IS NOT NULL")),
    )


@pytest.fixture
def batches(spark: SparkSession, tmp_path: Path) -> BatchWriter:
    return BatchWriter(spark, tmp_path, SCHEMA)


def mended(table: Table, condition: str = "bpm < 350") -> Table:
    return replace(table, expect=(Expect("plausible", condition), *table.expect[1:]))


def places(name: str) -> list[int]:
    return sorted(row["place"] for row in rows_of(name))


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


FIRST = [("a", at(0), 60, 0), ("a", at(1), 300, 1), ("b", at(2), 400, 2), (None, at(3), 300, 3), ("c", at(4), 310, 4)]


def test_rows_that_a_mended_rule_lets_in_go_back_once_and_the_others_are_counted(table, batches, replay, capsys):
    batches.write(table, FIRST)
    # Its reading came again, right this time.
    batches.write(table, [("c", at(4), 90, 5)])
    done = replay(mended(table))
    assert (done.state, done.step) == ("done", f"replay quarantine {table.name}")
    assert (places(table.name), places(table.quarantine)) == ([0, 1, 5], [2, 3])
    said = capsys.readouterr().out.splitlines()
    assert f"{table.quarantine}: 2 rows are good by today's rules, 2 are still bad, 0 not looked at" in said
    assert {"  1 break 'plausible'", "  1 break 'identified'"} <= set(said)
    assert f"{table.name}: 1 rows put back, 1 of the good ones were there already" in said
    replay(mended(table))
    batches.write(mended(table), [("d", at(5), 60, 6), ("a", at(1), 60, 7)])
    assert (places(table.name), places(table.quarantine)) == ([0, 1, 5, 6], [2, 3])


@only_in_full_runs
def test_rows_that_an_update_has_mended_go_back_and_keep_their_values(table, batches, replay, spark):
    batches.write(table, FIRST)
    path = settings().table_path(table.quarantine)
    spark.sql(f"UPDATE delta.`{path}` SET bpm = 77 WHERE place = 2")
    replay(table)
    assert places(table.quarantine) == [1, 3, 4]
    [row] = [row for row in rows_of(table.name) if row["place"] == 2]
    assert (row["device"], row["time"], row["bpm"]) == ("b", at(2), 77)


@only_in_full_runs
def test_only_rows_that_broke_a_named_rule_are_looked_at(table, batches, replay, spark):
    batches.write(table, FIRST)
    spark.sql(f"UPDATE delta.`{settings().table_path(table.quarantine)}` SET bpm = 70, device = 'z'")
    replay(table, "identified")
    assert (places(table.name), places(table.quarantine)) == ([0, 3], [1, 2, 4])
    with pytest.raises(UsageError, match="broke 'plausibel': did you mean 'plausible'"):
        replay(table, "plausibel")


def killed(step: str, monkeypatch) -> None:
    """From now on a replay dies at that step."""

    def dies(*arguments, **named):
        raise OSError("killed")

    def is_called(function: Callable, *when: bool) -> Callable:
        def instead(spark, table, condition, stamp):
            if not condition.startswith("_replay ="):
                return function(spark, table, condition, stamp)
            if step == "deleted":
                function(spark, table, condition, stamp)
            return dies()

        return instead

    if step == "marked":
        monkeypatch.setattr(engine_replay, "_append", dies)
    elif step == "begun":
        monkeypatch.setattr(engine_replay, "_mark", dies)
    else:
        monkeypatch.setattr(engine_replay, "_delete", is_called(engine_replay._delete))


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("begun", marks=only_in_full_runs),
        "marked",
        "appended",
        pytest.param("deleted", marks=only_in_full_runs),
    ],
)
def test_a_replay_that_dies_at_a_step_is_ended_by_the_next_one(table, batches, replay, monkeypatch, step: str):
    batches.write(table, FIRST)
    with monkeypatch.context() as patched:
        killed(step, patched)
        with pytest.raises(FlowFailed, match="killed"):
            replay(mended(table))
    everywhere = {"begun": [0, 1, 2, 3, 4], "marked": [0, 1, 2, 3, 4], "deleted": [0, 1, 2, 3, 4]}
    found = sorted(places(table.name) + places(table.quarantine))
    assert found == everywhere.get(step, [0, 1, 1, 2, 3, 4, 4])
    # The flow goes on before anybody looks, and today's rule is another one again.
    batches.write(mended(table), [("d", at(5), 60, 6), ("e", at(6), 360, 7)])
    replay(mended(table, "bpm < 305"))
    taken = step in ("appended", "deleted")
    right = ([0, 1, 4, 6], [2, 3, 7]) if taken else ([0, 1, 6], [2, 3, 4, 7])
    assert (places(table.name), places(table.quarantine)) == right
    assert {row["_replay"] for row in rows_of(table.quarantine)} == {None}


def test_a_row_of_a_batch_that_is_begun_and_not_written_is_left_to_its_flow(table, batches, replay, monkeypatch):
    batches.write(table, FIRST[:2])
    rows = [("e", at(5), 300, 5), ("f", at(6), 60, 6)]

    def fail(*arguments, **named):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(commit, "commit", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            batches.write(table, rows)
    replay(mended(table))
    assert (places(table.name), places(table.quarantine)) == ([0, 1], [5])
    batches.write_again(mended(table), rows)
    assert (places(table.name), places(table.quarantine)) == ([0, 1, 5, 6], [])


@only_in_full_runs
def test_rows_of_the_first_batch_are_left_to_it_too(table, batches, replay, monkeypatch):
    monkeypatch.setattr(commit, "commit", lambda *arguments, **named: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        batches.write(table, FIRST)
    replay(mended(table))
    assert (places(table.name), places(table.quarantine)) == ([], [1, 2, 3, 4])


@only_in_full_runs
def test_of_equal_mended_rows_a_unique_rule_lets_one_in(table, batches, replay):
    once = replace(table, write=Append(first_by=("place",)), expect=(table.expect[0], unique("device")))
    batches.write(once, [("a", at(0), 300, 0), ("a", at(1), 310, 1), ("b", at(2), 60, 2), ("b", at(3), 300, 3)])
    assert places(table.name) == [2]
    replay(mended(once))
    assert (places(table.name), places(table.quarantine)) == ([0, 2], [1, 3])


def test_a_replayed_row_that_is_late_downstream_is_named_there_and_let_in_by_name(table, batches, replay, spark):
    """Bronze to silver, whose quarantine is replayed, to a second silver table with a watermark."""
    below = replace(
        table,
        name=f"{table.name}_below",
        source=Delta(table.name),
        write=Append(unique=("device",), first_by=("place",), watermark=Watermark("time", minutes=30)),
        expect=(Expect("known", "place < 100"),),
    )
    downstream = BatchWriter(spark, batches.home / "below", SCHEMA)
    downstream.home.mkdir()
    batches.write(table, [("a", at(0), 300, 0), ("b", at(0), 300, 1), ("c", at(90), 60, 2), ("d", at(0), 60, 3)])
    downstream.write(below, [("c", at(90), 60, 2), ("d", at(0), 60, 3)])
    replay(mended(table))
    assert places(table.name) == [0, 1, 2, 3]
    # What the second flow reads then: the rows that the replay has appended, and one that repeats a stored device.
    downstream.write(below, [("a", at(0), 300, 0), ("b", at(0), 300, 1), ("d", at(0), 300, 4)])
    assert (places(below.name), places(below.quarantine)) == ([2, 3], [0, 1, 4])
    assert {tuple(row["_rules"]) for row in rows_of(below.quarantine)} == {(LATE,)}
    replay(below)
    assert places(below.name) == [2, 3], "who names no rule lets nobody in who came too late"
    replay(below, LATE)
    assert (places(below.name), places(below.quarantine)) == ([0, 1, 2, 3], [])
    # A replay makes nobody late, and nobody early.
    downstream.write(below, [("e", at(60), 60, 5), ("f", at(59), 60, 6)])
    assert (places(below.name), places(below.quarantine)) == ([0, 1, 2, 3, 5], [6])


@only_in_full_runs
def test_every_commit_of_a_replay_says_so(table, batches, replay):
    batches.write(table, FIRST)
    done = replay(mended(table))
    before = done.before.version
    for name in (table.name, table.quarantine):
        log = DeltaLog(settings().table_path(name))
        versions = [one for one in log.versions if name != table.name or one > before]
        stamps = [log.commit(one).metadata for one in versions if "window" in log.commit(one).metadata]
        assert {(one["window"], one["replay"]) for one in stamps} == {(done.number, 1)}
        assert len(stamps) == (1 if name == table.name else 2)


def test_a_dry_run_counts_and_touches_nothing(table, batches, spark, monkeypatch, capsys):
    batches.write(table, FIRST)
    monkeypatch.setattr(engine_replay, "open_session", lambda name, tables: spark)
    before = [DeltaLog(settings().table_path(name)).newest for name in (table.name, table.quarantine)]
    engine_replay.run(mended(table), Catalog({table.name: table}), [], dry_run=True)
    assert "2 rows are good by today's rules, 2 are still bad" in capsys.readouterr().out
    assert [DeltaLog(settings().table_path(name)).newest for name in (table.name, table.quarantine)] == before


def test_a_table_without_a_quarantine_cannot_be_replayed(table):
    with pytest.raises(UsageError, match="has no quarantine whose rows a rule of its could let in"):
        engine_replay.run(table, Catalog({table.name: table}), [], dry_run=False)
