"""A replay moves rows from the quarantine into their table exactly once, whatever fails in the middle of it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from include.catalog import Catalog
from include.control.jobs import all_kinds
from include.control.jobs.store import StoredJob
from include.control.store import database
from include.control.store.job_id import JobKind
from include.delta.delta_log import DeltaLog
from include.engine import commit
from include.engine.jobs import replay
from include.errors import FlowFailed, UsageError
from include.lake import locations
from include.rules import Expect, unique
from include.settings import settings
from include.spec import Append, Delta, Flow, Table, Upsert, Watermark
from tests.support.batches import BatchWriter
from tests.support.flows import only_in_full_runs, rows_of

SCHEMA = "device STRING, time TIMESTAMP, bpm INT, place BIGINT"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATE = "later than 30 minutes"


@pytest.fixture
def table(name: str) -> Table:
    return Flow(
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


def with_new_rule(table: Table, condition: str = "bpm < 350") -> Table:
    return replace(table, expect=(Expect("plausible", condition), *table.expect[1:]))


def stored_places(name: str) -> list[int]:
    return sorted(row["place"] for row in rows_of(name))


def at(minutes: float) -> datetime:
    return NOON + timedelta(minutes=minutes)


FIRST_ROWS = [
    ("a", at(0), 60, 0),
    ("a", at(1), 300, 1),
    ("b", at(2), 400, 2),
    (None, at(3), 300, 3),
    ("c", at(4), 310, 4),
]


def test_rows_that_a_mended_rule_lets_in_go_back_once_and_the_others_are_counted(
    table, batches, replay, capsys, caplog
):
    batches.write(table, FIRST_ROWS)
    # Device c sends its reading again, with a plausible value.
    batches.write(table, [("c", at(4), 90, 5)])
    window = replay(with_new_rule(table))
    assert (window.state, window.message) == ("done", f"replay quarantine {table.name}")
    assert (stored_places(table.name), stored_places(table.quarantine)) == ([0, 1, 5], [2, 3])
    output_lines = capsys.readouterr().out.splitlines()
    assert f"{table.quarantine}: 2 rows are good by today's rules, 2 are still bad, 0 not looked at" in output_lines
    assert {"  1 break 'plausible'", "  1 break 'identified'"} <= set(output_lines)
    assert f"{table.name}: 1 rows moved, 1 of the good ones were there already" in caplog.text
    replay(with_new_rule(table))
    assert [(job.state, job.reason, job.message) for job in jobs_of(table)] == [
        ("done", "all rules", "no row is good by today's rules"),
        ("done", "all rules", "1 rows moved, 1 of the good ones were there already"),
    ]
    batches.write(with_new_rule(table), [("d", at(5), 60, 6), ("a", at(1), 60, 7)])
    assert (stored_places(table.name), stored_places(table.quarantine)) == ([0, 1, 5, 6], [2, 3])


@only_in_full_runs
def test_rows_that_an_update_has_mended_go_back_and_keep_their_values(table, batches, replay, spark):
    batches.write(table, FIRST_ROWS)
    path = locations.table_path(table.quarantine)
    spark.sql(f"UPDATE delta.`{path}` SET bpm = 77 WHERE place = 2")
    replay(table)
    assert stored_places(table.quarantine) == [1, 3, 4]
    [row] = [row for row in rows_of(table.name) if row["place"] == 2]
    assert (row["device"], row["time"], row["bpm"]) == ("b", at(2), 77)


@only_in_full_runs
def test_only_rows_that_broke_a_named_rule_are_looked_at(table, batches, replay, spark):
    batches.write(table, FIRST_ROWS)
    spark.sql(f"UPDATE delta.`{locations.table_path(table.quarantine)}` SET bpm = 70, device = 'z'")
    replay(table, "identified")
    assert (stored_places(table.name), stored_places(table.quarantine)) == ([0, 3], [1, 2, 4])
    with pytest.raises(UsageError, match="broke 'plausibel': did you mean 'plausible'"):
        replay(table, "plausibel")


def jobs_of(table: Table) -> list[StoredJob]:
    """The replays of a table, newest first."""
    return all_kinds.newest(database.connect(settings().control_url), JobKind.REPLAY, table.name)


def kill_at(step: str, monkeypatch) -> None:
    """Let all replays die at this step."""

    def die(*arguments, **options):
        raise OSError("killed")

    def wrap(function: Callable) -> Callable:
        def delete_or_die(spark, table, condition, commit_metadata):
            if not condition.startswith("_replay ="):
                return function(spark, table, condition, commit_metadata)
            if step == "deleted":
                function(spark, table, condition, commit_metadata)
            return die()

        return delete_or_die

    if step == "marked":
        monkeypatch.setattr(replay, "_append", die)
    elif step == "begun":
        monkeypatch.setattr(replay, "_mark", die)
    else:
        monkeypatch.setattr(replay, "_delete", wrap(replay._delete))


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
    batches.write(table, FIRST_ROWS)
    with monkeypatch.context() as patched:
        kill_at(step, patched)
        with pytest.raises(FlowFailed, match="killed"):
            replay(with_new_rule(table))
    [unfinished] = jobs_of(table)
    assert (unfinished.ended_at, unfinished.failure is None) == (None, False)
    all_places = sorted(stored_places(table.name) + stored_places(table.quarantine))
    # Between the append and the delete, the rows that are restored are stored twice.
    assert all_places == ([0, 1, 1, 2, 3, 4, 4] if step == "appended" else [0, 1, 2, 3, 4])
    # The flow continues before the next replay, and the rule changes again.
    batches.write(with_new_rule(table), [("d", at(5), 60, 6), ("e", at(6), 360, 7)])
    replay(with_new_rule(table, "bpm < 305"))
    is_appended = step in ("appended", "deleted")
    expected = ([0, 1, 4, 6], [2, 3, 7]) if is_appended else ([0, 1, 6], [2, 3, 4, 7])
    assert (stored_places(table.name), stored_places(table.quarantine)) == expected
    assert {row["_replay"] for row in rows_of(table.quarantine)} == {None}
    [job] = jobs_of(table)
    assert (job.number, job.state, job.failure) == (unfinished.number, "done", None)


def test_a_row_of_a_batch_that_is_begun_and_not_written_is_left_to_its_flow(table, batches, replay, monkeypatch):
    batches.write(table, FIRST_ROWS[:2])
    rows = [("e", at(5), 300, 5), ("f", at(6), 60, 6)]

    def fail(*arguments, **options):
        raise OSError("the disk is gone")

    with monkeypatch.context() as patched:
        patched.setattr(commit, "commit", fail)
        with pytest.raises(OSError, match="the disk is gone"):
            batches.write(table, rows)
    replay(with_new_rule(table))
    assert (stored_places(table.name), stored_places(table.quarantine)) == ([0, 1], [5])
    batches.write_again(with_new_rule(table), rows)
    assert (stored_places(table.name), stored_places(table.quarantine)) == ([0, 1, 5, 6], [])


@only_in_full_runs
def test_rows_of_the_first_batch_are_left_to_it_too(table, batches, replay, monkeypatch):
    monkeypatch.setattr(commit, "commit", lambda *arguments, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        batches.write(table, FIRST_ROWS)
    replay(with_new_rule(table))
    assert (stored_places(table.name), stored_places(table.quarantine)) == ([], [1, 2, 3, 4])


@only_in_full_runs
def test_of_equal_mended_rows_a_unique_rule_lets_one_in(table, batches, replay):
    unique_table = replace(table, write=Append(first_by=("place",)), expect=(table.expect[0], unique("device")))
    batches.write(unique_table, [("a", at(0), 300, 0), ("a", at(1), 310, 1), ("b", at(2), 60, 2), ("b", at(3), 300, 3)])
    assert stored_places(table.name) == [2]
    replay(with_new_rule(unique_table))
    assert (stored_places(table.name), stored_places(table.quarantine)) == ([0, 2], [1, 3])


def test_a_replayed_row_that_is_late_downstream_is_named_there_and_let_in_by_name(table, batches, replay, spark):
    """The reader of the replayed table is a second silver table, which has a watermark."""
    downstream_table = replace(
        table,
        name=f"{table.name}_below",
        source=Delta(table.name),
        write=Append(unique=("device",), first_by=("place",), watermark=Watermark("time", minutes=30)),
        expect=(Expect("known", "place < 100"),),
    )
    downstream_batches = BatchWriter(spark, batches.home / "below", SCHEMA)
    downstream_batches.home.mkdir()
    batches.write(table, [("a", at(0), 300, 0), ("b", at(0), 300, 1), ("c", at(90), 60, 2), ("d", at(0), 60, 3)])
    downstream_batches.write(downstream_table, [("c", at(90), 60, 2), ("d", at(0), 60, 3)])
    replay(with_new_rule(table))
    assert stored_places(table.name) == [0, 1, 2, 3]
    # The second flow then reads the replayed rows, and a row that repeats a stored device.
    downstream_batches.write(downstream_table, [("a", at(0), 300, 0), ("b", at(0), 300, 1), ("d", at(0), 300, 4)])
    assert (stored_places(downstream_table.name), stored_places(downstream_table.quarantine)) == ([2, 3], [0, 1, 4])
    assert {tuple(row["_rules"]) for row in rows_of(downstream_table.quarantine)} == {(LATE,)}
    replay(downstream_table)
    assert stored_places(downstream_table.name) == [2, 3], "who names no rule lets nobody in who came too late"
    replay(downstream_table, LATE)
    assert (stored_places(downstream_table.name), stored_places(downstream_table.quarantine)) == ([0, 1, 2, 3], [])
    # A replay does not move the watermark.
    downstream_batches.write(downstream_table, [("e", at(60), 60, 5), ("f", at(59), 60, 6)])
    assert (stored_places(downstream_table.name), stored_places(downstream_table.quarantine)) == ([0, 1, 2, 3, 5], [6])


@only_in_full_runs
def test_every_commit_of_a_replay_says_so(table, batches, replay):
    batches.write(table, FIRST_ROWS)
    window = replay(with_new_rule(table))
    version_before = window.before.version
    for name in (table.name, table.quarantine):
        log = DeltaLog(locations.table_path(name))
        versions = [version for version in log.versions if name != table.name or version > version_before]
        metadata = [log.commit(version).metadata for version in versions if "window" in log.commit(version).metadata]
        assert {(entry["window"], entry["replay"]) for entry in metadata} == {(window.number, 1)}
        assert len(metadata) == (1 if name == table.name else 2)


def test_a_dry_run_counts_and_touches_nothing(table, batches, spark, monkeypatch, capsys):
    batches.write(table, FIRST_ROWS)
    monkeypatch.setattr(replay, "open_session", lambda name, tables: spark)
    versions_before = [DeltaLog(locations.table_path(name)).newest for name in (table.name, table.quarantine)]
    replay.run(with_new_rule(table), Catalog({table.name: table}), [], dry_run=True)
    assert "2 rows are good by today's rules, 2 are still bad" in capsys.readouterr().out
    assert [DeltaLog(locations.table_path(name)).newest for name in (table.name, table.quarantine)] == versions_before


def test_a_table_without_a_quarantine_cannot_be_replayed(table):
    with pytest.raises(UsageError, match="has no quarantine whose rows a rule of its could let in"):
        replay.run(table, Catalog({table.name: table}), [], dry_run=False)


def test_rows_of_a_time_when_the_table_merged_no_changes_stay_in_the_quarantine(batches, replay, table):
    batches.write(table, FIRST_ROWS)
    merging = replace(table, write=Upsert(("device",), sequence_by="place"), expect=())
    batches.write(merging, [("c", at(4), 60, 9)])
    quarantined = sorted(row["place"] for row in rows_of(table.quarantine))
    assert len(quarantined) > 1
    replay(merging)
    assert sorted(row["place"] for row in rows_of(table.quarantine)) == quarantined
