"""Plans of rewinds and their refusals. The tests write the Delta logs by hand."""

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest

from include.catalog import Catalog
from include.control.jobs import backfills
from include.control.store import database
from include.errors import Unreachable, UsageError
from include.lake import locations
from include.project.ranges import Slice
from include.recovery import rewind_plan
from include.recovery.rewind_plan import RewindPlan
from include.spec import Delta, Expect, Flow, Replace, Table
from tests.support import lake
from tests.support.delta_log import removed
from tests.support.lake import delta_offset as delta_offset


@pytest.fixture
def engine(tmp_path):
    return database.connect(f"sqlite:///{tmp_path / 'control.db'}")


@pytest.fixture
def silver() -> Table:
    """A silver table with four batches, a second apart. Its bronze has four versions of one file each."""
    name = f"t{uuid.uuid4().hex[:10]}"
    table = Flow(
        name=f"silver.{name}",
        comment="",
        source=Delta(f"bronze.{name}"),
        schema="number BIGINT",
        expect=(Expect("is small", "number < 5"),),
    )
    lake.write(table.name, 0.01)
    lake.write(table.quarantine, 0.01)
    for batch in range(4):
        lake.rows(table.source.table, batch + 0.1, 1)
        write_batch(table.quarantine, table, batch, batch + 0.2)
        write_batch(table.name, table, batch, batch + 0.3)
    lake.checkpoint(table.flow, *map(delta_offset, range(1, 5)))
    for table_name in (table.name, table.quarantine, table.source.table):
        path = lake.locations.table_path(table_name)
        for version in range(lake.next_version(path)):
            (path / f"{version}-0").write_text("")
    return table


def write_batch(name: str, table: Table, batch: int, at_seconds: float) -> int:
    metadata = {"flow": table.flow, "generation": 1, "batch": batch, "source_to": delta_offset(batch + 1)}
    return lake.rows(name, at_seconds, 1, **metadata, source={"table": table.source.table})


@pytest.fixture
def plan(engine, silver) -> Callable[..., RewindPlan]:
    def make_plan(seconds: float, *others: Table, table: Table | None = None) -> RewindPlan:
        tables = Catalog({entry.name: entry for entry in (table or silver, *others)})
        return rewind_plan.plan(engine, table or silver, tables, f"1970-01-01T00:00:{seconds:09.6f}")

    return make_plan


def versions(rewind: RewindPlan) -> list[tuple[int, int | None]]:
    return [(restore_point.version, restore_point.quarantine) for restore_point in rewind.cut.values()]


def test_the_quarantine_goes_back_to_the_last_batch_that_is_kept(plan):
    assert versions(plan(1.3)) == [(2, 2)]
    # At that time, the quarantine of the next batch is written, and its table is not.
    assert versions(plan(2.25)) == [(2, 2)]
    assert versions(plan(0.2)) == [(0, 0)]


def test_a_replay_is_undone_in_both(silver, plan):
    mark_version = lake.rows(silver.quarantine, 5, 1, window=1, replay=1)
    lake.rows(silver.name, 5.1, 1, window=1, replay=1)
    end_version = lake.rows(silver.quarantine, 5.2, 1, window=1, replay=1)
    lake.rows(silver.name, 6, 1, window=2, replay=2)
    assert (mark_version, end_version) == (5, 6)
    # Before the append, the replay does not count. After the append, all of it counts.
    assert versions(plan(5.05)) == [(4, 4)]
    assert versions(plan(5.15)) == [(5, 6)]
    [step] = plan(5.05).steps.values()
    assert [line for line in step.undone if "are in the quarantine again" in line] == step.undone


def test_what_only_moved_rows_neither_counts_nor_is_undone(silver, plan):
    lake.write(silver.quarantine, 5)
    lake.write(silver.name, 5)
    assert plan(4).steps == {}
    assert versions(plan(1.3)) == [(2, 2)]


@pytest.mark.parametrize("has_key", [True, False])
def test_a_companion_keeps_what_a_full_refresh_made_and_goes_back_behind_a_later_one(silver, plan, has_key):
    """A refresh that finds no old rows to delete in a companion leaves one commit there, which has no key."""
    for at_seconds, window, key in ((4, 7, "k"), (6, 8, "l")):
        mark = {"key": key} if has_key else {}
        lake.rows(silver.quarantine, at_seconds, 1, window=window, step="backfill", backfill=mark)
        backfill = {"key": key, "number": window, "rows_before": 1, "anew": {}}
        lake.rows(silver.name, at_seconds + 0.1, 1, window=window, step="backfill", backfill=backfill)
    newest = lake.next_version(locations.table_path(silver.quarantine)) - 1
    assert versions(plan(5))[0][1] == newest - 1
    assert versions(plan(3.5))[0][1] == newest - 2


def test_rows_of_a_batch_that_was_tried_and_not_committed_go(silver, plan):
    write_batch(silver.quarantine, silver, 4, 5)
    assert versions(plan(2.3)) == [(3, 3)]


def test_deleted_files_are_named(silver, plan):
    path = locations.table_path(silver.name)
    lake.write(silver.name, 5, removed("1-0", 5, dataChange=True), window=1)
    assert plan(2.3).refusals == []
    (path / "1-0").unlink()
    [refusal] = plan(2.3).refusals
    assert refusal.startswith(f"{silver.name}: VACUUM has deleted 1 files of version 3, 1-0 say")


def test_what_would_be_read_again_has_to_be_there_and_the_same(silver, plan):
    assert plan(1.3).refusals == []
    (locations.table_path(silver.source.table) / "2-0").unlink()
    # The newest version still names the file, so that only a reader notices the loss.
    assert plan(1.3).refusals == []
    lake.write(silver.source.table, 6, removed("2-0", 6))
    [refusal] = plan(1.3).refusals
    assert f"files of {silver.source.table} that would be read again are deleted, 2-0 say" in refusal
    lake.write(silver.source.table, 7, removed("3-0", 7, dataChange=True))
    [refusal] = plan(1.3).refusals
    assert "has replaced what would be read again" in refusal


def test_a_log_of_its_source_that_begins_later_is_refused(silver, plan):
    for version in range(3):
        (locations.table_path(silver.source.table) / "_delta_log" / f"{version:020}.json").unlink()
    [refusal] = plan(0.3).refusals
    assert f"the log of {silver.source.table} begins with version 3" in refusal


def test_a_flow_that_would_begin_anew_must_not_say_since_when(silver, plan):
    table_since = replace(silver, source=replace(silver.source, since_version=1))
    assert plan(0.1, table=table_since).refusals == [
        f"{silver.flow}: it would start from the beginning, and its source says since when: name a later moment"
    ]
    assert plan(0.3, table=table_since).refusals == []


def test_a_backfill_that_is_in_the_middle_of_it_is_to_end_first(silver, plan, engine):
    backfill = backfills.begin(engine, silver.name, Slice(), "ada")
    # A backfill that has stopped no reader is in nobody's way.
    assert plan(1.3).refusals == []
    backfills.stop_readers(engine, backfill, ["gold.x"])
    [refusal] = plan(1.3).refusals
    assert refusal.startswith(f"{silver.name}: backfill {backfill.number} is in the middle of it")


def test_what_nobody_makes_again_is_said(silver, plan):
    lake.write(silver.name, 5, removed("1-0", 5, dataChange=True))
    [step] = plan(4).steps.values()
    assert step.undone == ["version 5 (WRITE) is undone and does not come back, as no flow of Sluice wrote it"]
    lines = plan(1.3).lines()
    assert lines[0] == f"{silver.name} goes back to version 2 of 1970-01-01 00:00:01Z"
    assert "  2 batches with 0 rows are undone and recomputed" in lines


def test_views_are_refreshed_and_never_rewound(silver, plan):
    view = Flow(
        name=f"gold.{uuid.uuid4().hex[:10]}", comment="", source=Delta(silver.name), schema="a INT", write=Replace()
    )
    lake.rows(view.name, 1, 1)
    assert plan(1.3, view).views == [view.name]
    with pytest.raises(UsageError, match="is a materialized view, which is never rewound but refreshed"):
        plan(1.3, silver, table=view)


def test_a_table_that_is_not_stored_has_nothing_to_undo(plan, silver):
    with pytest.raises(Unreachable, match="start the flow that writes the table first"):
        plan(1, table=replace(silver, name="silver.nobody"))
