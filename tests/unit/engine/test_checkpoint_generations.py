"""A checkpoint is continued only if no later one has written to the table: decided from files, without Spark."""

import json

import pytest

from include.checkpoints.checkpoint_files import OWNER
from include.engine.checkpoints import checkpoint
from include.errors import FlowBroken
from include.spec import Delta, Table
from tests.support import lake

TABLE = Table(name="silver.orders", comment="", source=Delta("bronze.orders"), schema="number BIGINT")
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
