"""How a generation begins, and when a checkpoint is continued: decided from files, without Spark."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from include.checkpoints import checkpoint_files, landing_folder
from include.checkpoints.checkpoint_files import OWNER
from include.checkpoints.landing_folder import PlannedFile
from include.engine.checkpoints import checkpoint, generation
from include.errors import FlowBroken
from include.flows.batches import Generation
from include.flows.source import StartPosition
from include.lake import locations
from include.lake.paths import LakePath
from include.spec import Delta, Flow
from tests.support import lake

TABLE = Flow(name="silver.orders", comment="", source=Delta("bronze.orders"), schema="number BIGINT")
IDENTITY = {"flow": TABLE.flow, "source": {"table": "bronze.orders"}, "write": {"mode": "Append"}}


def committed(generation: int, batch: int) -> None:
    """The commit of a batch of this generation, as its transaction tells it."""
    transaction = {"txn": {"appId": f"{TABLE.flow}/{generation}", "version": batch, "lastUpdated": 1}}
    metadata = {"flow": TABLE.flow, "generation": generation, "batch": batch}
    lake.write(TABLE.name, 1_800_000_000 + batch, transaction, **metadata)


@pytest.fixture
def opened(home):
    """Opens generation 2, which follows batch 0 of generation 1 and is done with its first batch, number 1."""
    directory = lake.planned_checkpoint(TABLE.flow, planned=[1, 2], committed=2, generation=2)
    owner = {**IDENTITY, "first": 1, "after": [1, 0], "definitions": []}
    (directory / OWNER).write_text(json.dumps(owner))
    committed(1, 0)
    committed(2, 1)
    return lambda: checkpoint._open(directory, 2, TABLE, IDENTITY)


def test_the_newest_generation_goes_on_after_its_last_commit(opened):
    claimed = opened()
    assert (claimed.generation, claimed.committed, claimed.written, claimed.last_commit) == (2, 1, 1, (2, 1))


def test_a_checkpoint_whose_newest_generation_is_gone_is_refused(opened):
    committed(3, 2)
    with pytest.raises(
        FlowBroken, match="the table holds batches of that generation, which its checkpoint .*/3 "
    ) as lost:
        opened()
    assert lost.value.error == "CHECKPOINT_LOST"


def test_a_table_ahead_of_its_checkpoint_or_behind_it_is_refused(opened):
    committed(2, 4)
    with pytest.raises(FlowBroken, match="the table holds batch 4") as lost:
        opened()
    assert lost.value.error == "CHECKPOINT_LOST"


def begun(number: int, **beginning: Any) -> LakePath:
    """Begins a generation. Of the session only its settings count."""
    session: Any = SimpleNamespace(conf={generation.SHUFFLE_PARTITIONS: 7})
    home = locations.checkpoints(TABLE.flow)
    generation.begin(home, number, {"definitions": ["an older one"], **IDENTITY}, StartPosition(**beginning), session)
    return home / str(number)


def test_a_generation_that_follows_a_commit_begins_with_a_committed_batch_0_in_the_format_of_spark(home):
    offset = lake.delta_offset(5)
    directory = begun(2, offset=offset, after=(1, 9))
    owner = {**IDENTITY, "definitions": ["an older one"], "generation": 2, "after": [1, 9], "first": 1}
    assert checkpoint_files.owner(directory) == owner
    batch = checkpoint_files.planned_batch(directory, 0)
    # Spark fails without this setting when batch 1 is planned and not committed.
    assert (batch.end, batch.conf) == (offset, {"spark.sql.shuffle.partitions": "7"})
    settings_line = '{"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {"spark.sql.shuffle.partitions": "7"}}'
    assert (directory / "offsets" / "0").read_text() == f"v1\n{settings_line}\n{json.dumps(offset)}"
    assert (directory / "commits" / "0").read_text() == 'v1\n{"nextBatchWatermarkMs":0}'
    ids = [json.loads((path / "metadata").read_text())["id"] for path in (directory, begun(3, offset=offset))]
    assert len({*ids, None, ""}) == 4
    assert Generation.at(directory) == Generation(directory, frozenset({0}), frozenset({0}), 1)
    assert not (directory / "sources").exists()


def test_a_generation_from_the_beginning_of_its_source_has_no_batch_and_one_of_files_knows_those_that_are_read(home):
    directory = begun(1)
    assert checkpoint_files.owner(directory)["after"] is None
    assert Generation.at(directory) == Generation(directory, frozenset(), frozenset(), 0)
    read = PlannedFile("file:///in/a.csv", 5_000, 0)
    directory = begun(2, offset={"logOffset": 0}, after=(1, 0), files=(read,))
    assert landing_folder.planned_files(directory, {"logOffset": 0}) == [read]
