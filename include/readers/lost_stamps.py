"""Finds out which batch made a commit that lost its metadata: its transaction says so, and the checkpoint the offsets.

A batch commits under `txnAppId` = flow and generation and `txnVersion` = batch, which no other writer does.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from include.errors import FlowBroken
from include.lake.object_path import LakePath
from include.readers import offset_log
from include.settings import settings
from include.spec import table_of

# The key of metadata that was found out so.
LOST = "lost_stamp"


def found(table: LakePath, actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Returns the metadata of a batch's commit, without its counts of rows; empty where nothing proves it.

    table: the path of the table. actions: the `txn` actions of the commit.
    """
    for action in actions:
        transaction = action.get("txn") or {}
        flow, _, generation = str(transaction.get("appId")).rpartition("/")
        if not generation.isdecimal() or settings().table_path(table_of(flow)) != table:
            continue
        with suppress(FlowBroken, KeyError, ValueError):
            return _metadata(flow, int(generation), int(transaction["version"]))
    return {}


def _metadata(flow: str, generation: int, batch: int) -> dict[str, Any]:
    """Raises FlowBroken where the checkpoint no longer has the offsets of the batch."""
    checkpoint = settings().checkpoints(flow) / str(generation)
    begin = offset_log.planned_batch(checkpoint, batch - 1).end if batch else None
    return {
        "flow": flow,
        "generation": generation,
        "batch": batch,
        "source": offset_log.owner(checkpoint)["source"],
        "source_from": begin,
        "source_to": offset_log.planned_batch(checkpoint, batch).end,
        LOST: True,
    }
