"""Previews of checkpoint resets: each says what the reset would do, and writes nothing."""

import uuid

import pytest
from deltalake import DeltaTable

from include.cli.jobs import reset_lines
from include.errors import FlowBroken
from include.kafka import broker
from include.lake import locations
from include.recovery import reset
from include.spec import Flow, Kafka
from tests.conftest import free_port
from tests.support.account import StoredTable, delta, kafka_rows, reader

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture
def stored() -> StoredTable:
    """A silver table with two batches."""
    table = reader(f"t{uuid.uuid4().hex[:12]}", "bronze.some")
    stored_table = StoredTable(table, {"table": "bronze.some"})
    stored_table.create(kafka_rows(0, 0))
    stored_table.batch(0, None, delta(3), kafka_rows(0, 10))
    stored_table.batch(1, delta(3), delta(5), kafka_rows(10, 20))
    return stored_table


def test_a_lost_checkpoint_would_begin_anew_where_the_tables_last_commit_ends(stored):
    stored.delete_checkpoints()
    preview = reset.plan(stored.table)
    assert (preview.generation, preview.after, preview.version) == (2, f"{stored.table.flow} 1/1", 2)
    assert preview.offset == delta(5)
    assert any("whose checkpoint is gone" in warning for warning in preview.warnings)
    assert '"action": "reset checkpoint"' in list(reset_lines(preview))[-1]
    assert not locations.checkpoints(stored.table.flow).exists(), "a dry run writes nothing"


def test_a_damaged_checkpoint_is_named_and_what_it_had_planned_is_read_again(stored):
    stored.plan(2, delta(7))
    stored.write("metadata", "")
    preview = reset.plan(stored.table)
    assert (preview.generation, preview.after, preview.abandons) == (
        2,
        f"{stored.table.flow} 1/1",
        [f"{stored.table.flow} 1/2"],
    )
    assert any("metadata is missing or unreadable" in warning for warning in preview.warnings)


def test_what_a_restore_has_undone_would_be_read_again(stored):
    DeltaTable(stored.path).restore(1)
    preview = reset.plan(stored.table)
    assert (preview.generation, preview.after, preview.version) == (2, f"{stored.table.flow} 1/0", 1)
    assert preview.offset == delta(3)
    assert not any("LEFT OUT" in warning for warning in preview.warnings)


def test_what_an_overwrite_has_replaced_would_be_left_out_and_that_is_said(stored):
    stored.append(kafka_rows(0, 1), mode="overwrite")
    preview = reset.plan(stored.table)
    assert (preview.after, preview.offset) == (f"{stored.table.flow} 1/1", delta(5))
    [warning] = [line for line in preview.warnings if line.startswith("LEFT OUT")]
    assert f"an overwrite has replaced {stored.table.flow} 1/1 and all before it" in warning
    assert "restore the table to version 2 first" in warning


def test_a_table_without_a_batch_would_be_read_from_the_beginning():
    new_table = StoredTable(reader(f"t{uuid.uuid4().hex[:12]}", "bronze.some"))
    new_table.create(kafka_rows(0, 0))
    preview = reset.plan(new_table.table)
    assert (preview.generation, preview.after, preview.offset) == (1, None, None)


def test_another_source_is_refused_as_the_start_would(stored):
    with pytest.raises(FlowBroken, match="which is another source than today's"):
        reset.plan(reader(stored.table.name.split(".")[1], "bronze.other"))


def test_without_a_broker_the_stamps_still_tell(own_settings, monkeypatch):
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{free_port()}")
    monkeypatch.setattr(broker, "TIMEOUT_SECONDS", 1)
    new_table = StoredTable(Flow(name=f"bronze.t{uuid.uuid4().hex[:12]}", comment="", source=Kafka("t")))
    new_table.create(kafka_rows(0, 0))
    new_table.batch(0, None, {"t": {"0": 10}}, kafka_rows(0, 10))
    preview = reset.plan(new_table.table)
    assert (preview.offset, preview.after) == ({"t": {"0": 10}}, f"{new_table.table.flow} 1/0")
    assert any("was not asked" in warning for warning in preview.warnings)
