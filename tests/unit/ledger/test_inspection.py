"""Inspections of a table and its checkpoints, also after somebody has changed them."""

import json
import uuid
from dataclasses import asdict

import pytest
from deltalake import DeltaTable, write_deltalake

from include.checkpoints import checkpoint_files
from include.cli.rows import entry_line, inspection_lines
from include.flows.batches import BatchHistory, BatchRecord
from include.lake import locations
from include.ledger.inspection import inspect
from include.spec import Flow, Kafka
from tests.support.account import FIRST_BATCH_MS, SETTINGS, StoredTable, kafka_rows

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def end_offset(offset: int) -> dict:
    return {"t": {"0": offset}}


@pytest.fixture
def stored() -> StoredTable:
    """A bronze table with three batches of ten records."""
    table = Flow(name=f"bronze.t{uuid.uuid4().hex[:12]}", comment="", source=Kafka("t"))
    stored_table = StoredTable(table)
    stored_table.create(kafka_rows(0, 0))
    for batch in range(3):
        begin = end_offset(batch * 10) if batch else None
        stored_table.batch(batch, begin, end_offset(batch * 10 + 10), kafka_rows(batch * 10, batch * 10 + 10))
    return stored_table


def states(stored: StoredTable) -> dict[tuple[int, int], str]:
    return {(batch.generation, batch.batch): batch.state for batch in BatchHistory(stored.table).batches()}


def kinds(stored: StoredTable) -> set[str]:
    return {fault.kind for fault in inspect(stored.table, 20).faults}


def sentence(stored: StoredTable, kind: str) -> str:
    [text] = [fault.sentence for fault in inspect(stored.table, 20).faults if fault.kind == kind]
    return text


def test_every_batch_is_told_with_what_it_read_and_wrote(stored):
    newest = inspect(stored.table, 1).newest[0]
    assert isinstance(newest, BatchRecord)
    assert (newest.batch, newest.state, newest.version) == (2, "committed", 3)
    assert (newest.source_from, newest.source_to) == (end_offset(20), end_offset(30))
    assert newest.planned_at == FIRST_BATCH_MS / 1000 + 2
    assert entry_line(newest).endswith("from t/0 20 to 29")
    assert states(stored) == {(1, 2): "committed", (1, 1): "committed", (1, 0): "committed"}
    assert kinds(stored) == set()


def test_a_batch_that_was_planned_and_not_written_is_told_with_its_frozen_offsets(stored):
    stored.plan(3, end_offset(45))
    inspection = inspect(stored.table, 1)
    [newest] = inspection.newest
    assert (newest.batch, newest.state, newest.version) == (3, "planned", None)
    assert (newest.source_from, newest.source_to, newest.planned_at) == (
        end_offset(30),
        end_offset(45),
        FIRST_BATCH_MS / 1000 + 3,
    )
    restart = inspection.restarts[stored.table.flow]
    assert (restart.replays.batch, restart.replays.end, restart.conf) == (3, end_offset(45), SETTINGS)
    assert restart.next_batch == 4
    assert any("a restart replays batch 3 up to " in line for line in inspection_lines(inspection))


def test_a_batch_that_is_written_and_not_acknowledged_is_told_apart(stored):
    stored.plan(3, end_offset(40))
    stored.commit(3, end_offset(30), end_offset(40), kafka_rows(30, 40))
    assert states(stored)[(1, 3)] == "written"


@pytest.mark.parametrize("form", ["v1", "v2"])
def test_offsets_are_read_in_both_of_sparks_forms(stored, form):
    header = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 5_000, "conf": SETTINGS})
    prefix = "0:" if form == "v2" else ""
    stored.write("offsets/3", f"{form}\n{header}\n{prefix}{json.dumps(end_offset(31))}")
    assert checkpoint_files.planned_batch(stored.checkpoint, 3) == checkpoint_files.PlannedBatch(
        3, end_offset(31), 5.0, SETTINGS
    )
    stored.write("commits/3", f'{form}\n{{"nextBatchWatermarkMs":0}}')
    checkpoint_files.check_commit(stored.checkpoint, 3)


def test_batches_of_several_generations_are_one_history(stored):
    first_checkpoint, stored.generation = stored.checkpoint, 2
    stored.plan(0, end_offset(30))
    stored.acknowledge(0)
    stored.batch(1, end_offset(30), end_offset(40), kafka_rows(30, 40))
    (first_checkpoint / "offsets" / "3").write_text("v1\n{}\n{}")
    assert states(stored) == {
        (2, 1): "committed",
        (1, 3): "abandoned",
        (1, 2): "committed",
        (1, 1): "committed",
        (1, 0): "committed",
    }


def test_a_table_that_was_restored_has_lost_the_batches_behind_that_version(stored):
    DeltaTable(stored.path).restore(1)
    assert states(stored) == {(1, 2): "undone", (1, 1): "undone", (1, 0): "committed"}
    assert "version 4 (RESTORE) restored it to 1; without batches" in sentence(stored, "restored")
    assert f"{stored.table.flow} 1/1 to 2" in sentence(stored, "restored")
    assert inspect(stored.table, 1).states == {"undone": 2, "committed": 1}


def test_a_table_that_was_overwritten_holds_none_of_its_batches(stored):
    stored.append(kafka_rows(0, 1), mode="overwrite")
    assert set(states(stored).values()) == {"undone"}
    assert "replaced all it held" in sentence(stored, "overwritten")


def test_a_table_that_was_created_anew_over_itself_holds_none_of_its_batches(stored):
    DeltaTable.create(str(stored.path), kafka_rows(0, 0).schema, mode="overwrite")
    assert set(states(stored).values()) == {"undone"}
    assert "REPLACE TABLE) replaced all it held" in sentence(stored, "overwritten")


def test_a_vacuum_by_a_stranger_is_named(stored):
    DeltaTable(stored.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    DeltaTable(stored.path).optimize.compact()
    DeltaTable(stored.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert "vacuumed" in kinds(stored)
    assert set(states(stored).values()) == {"committed"}


def test_commits_of_windows_replays_and_strangers_are_told_apart(stored):
    stored.append(kafka_rows(0, 0), {"window": 7, "step": "optimize"})
    stored.append(kafka_rows(0, 0), {"window": 8, "step": "replay quarantine", "replay": 1})
    write_deltalake(stored.path, kafka_rows(90, 91), mode="append")
    assert inspect(stored.table, 20).others == {"foreign": 1, "replay": 1, "window": 1, "declaration": 1}
    assert "version 6 (WRITE) is by nobody Sluice knows" in sentence(stored, "foreign")


def test_a_log_that_was_cleaned_leaves_its_batches_to_the_checkpoint(stored):
    DeltaTable(stored.path).create_checkpoint()
    for version in range(3):
        (stored.path / "_delta_log" / f"{version:020}.json").unlink()
    assert states(stored) == {(1, 2): "committed", (1, 1): "cleaned", (1, 0): "cleaned"}
    assert "begins with version 3" in sentence(stored, "log cleaned")


def test_a_hole_in_the_log_is_named_and_so_is_its_batch(stored):
    (stored.path / "_delta_log" / f"{2:020}.json").unlink()
    assert states(stored)[(1, 1)] == "missing"
    assert "lacks versions 2" in sentence(stored, "log with a gap")
    assert f"batches {stored.table.flow} 1/1: " in sentence(stored, "missing")


def test_a_hole_in_front_of_a_batch_is_seen_without_a_checkpoint(stored):
    (stored.path / "_delta_log" / f"{2:020}.json").unlink()
    stored.delete_checkpoints()
    assert states(stored) == {(1, 2): "history", (1, 1): "missing", (1, 0): "history"}


def test_a_batch_that_spark_is_done_with_and_the_table_lacks_is_missing(stored):
    stored.plan(3, end_offset(40))
    stored.acknowledge(3)
    assert states(stored)[(1, 3)] == "missing"


def test_a_batch_that_was_committed_twice_is_named(stored):
    stored.commit(2, end_offset(20), end_offset(30), kafka_rows(20, 30))
    records = [record for record in BatchHistory(stored.table).batches() if record.batch == 2]
    assert sorted(record.state for record in records) == ["committed", "doubled"]
    assert "doubled" in kinds(stored)


def test_a_checkpoint_that_is_gone_is_named_and_history_still_tells(stored):
    stored.delete_checkpoints()
    assert set(states(stored).values()) == {"history"}
    assert "holds batches of generation 1, whose checkpoint is gone" in sentence(stored, "checkpoint lost")


def test_a_checkpoint_that_was_put_back_to_an_older_state_is_named(stored):
    for name in ("offsets/2", "commits/2"):
        (stored.checkpoint / name).unlink()
    assert states(stored) == {(1, 2): "history", (1, 1): "committed", (1, 0): "committed"}
    assert "and their checkpoint does not know them" in sentence(stored, "checkpoint lost")


def test_a_checkpoint_that_lost_its_newest_files_of_one_kind_is_named(stored):
    for batch in (3, 4):
        stored.plan(batch, end_offset(batch * 10 + 10))
    assert "plans up to batch 4 and is done up to 2, files are missing" in sentence(stored, "checkpoint with a gap")


@pytest.mark.parametrize("name", ["offsets/2", "commits/2", "offsets/1", "metadata", "owner.json"])
def test_a_file_of_a_checkpoint_that_was_cut_off_is_named(stored, name):
    stored.write(name, (stored.checkpoint / name).read_text()[:-3])
    assert kinds(stored) == {"checkpoint damaged"}
    assert str(stored.checkpoint / name) in sentence(stored, "checkpoint damaged")


def test_the_checkpoint_of_another_flow_is_named(stored):
    owner = json.loads((stored.checkpoint / "owner.json").read_text())
    stored.write("owner.json", json.dumps({**owner, "flow": "bronze.other"}))
    assert "is that of bronze.other" in sentence(stored, "checkpoint of another flow")


@pytest.mark.parametrize(("name", "lacks"), [("offsets", "offsets lacks 1"), ("commits", "commits lacks 1")])
def test_a_checkpoint_with_a_gap_is_named(stored, name, lacks):
    (stored.checkpoint / name / "1").unlink()
    assert lacks in sentence(stored, "checkpoint with a gap")


def test_old_files_that_spark_has_purged_are_no_gap(stored):
    for name in ("offsets/0", "commits/0"):
        (stored.checkpoint / name).unlink()
    assert kinds(stored) == set()
    assert states(stored)[(1, 0)] == "committed"


def test_what_is_said_can_be_written_as_json(stored):
    document = json.loads(json.dumps(asdict(inspect(stored.table, 2))))
    assert [batch["batch"] for batch in document["newest"]] == [2, 1]
    assert locations.checkpoints(stored.table.flow).is_dir()
