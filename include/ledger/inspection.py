"""Gathers what `python -m include.ledger inspect TABLE` shows: batches, other commits, restarts and faults."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from include.checkpoints import checkpoint_files
from include.checkpoints.checkpoint_files import Restart
from include.errors import FlowBroken
from include.flows.batches import STATES_WITH_ROWS, BatchHistory, BatchRecord, OtherCommit
from include.ledger import faults
from include.ledger.faults import Fault
from include.spec import Table


@dataclass(frozen=True)
class Inspection:
    """The state of a stored table.

    versions: the oldest and the newest version in its log.
    states: the number of batches in each state.
    others: the number of commits of each kind that are not batches.
    rows, files, bytes: what batches added and the table still holds, as far as its log goes back.
    restarts: by flow, None where the checkpoint cannot tell.
    newest: the newest entries, newest first.
    """

    table: str
    versions: tuple[int, int]
    states: dict[str, int]
    others: dict[str, int]
    rows: int
    files: int
    bytes: int
    restarts: dict[str, Restart | None]
    faults: list[Fault]
    newest: list[BatchRecord | OtherCommit]


def inspect(table: Table, limit: int, flow: str | None = None) -> Inspection:
    """Inspects a stored table. With flow, `newest` holds only batches of that flow.

    Raises Unreachable where the table is not stored, and FlowBroken.
    """
    history = BatchHistory(table)
    entries = list(history.entries())
    written = [entry for entry in entries if isinstance(entry, BatchRecord) and entry.state in STATES_WITH_ROWS]
    listed = (entry for entry in entries if flow is None or (isinstance(entry, BatchRecord) and entry.flow == flow))
    return Inspection(
        table=table.name,
        versions=(history.log.versions[0], history.log.newest),
        states=dict(Counter(entry.state for entry in entries if isinstance(entry, BatchRecord))),
        others=dict(Counter(entry.kind for entry in entries if isinstance(entry, OtherCommit))),
        rows=sum(batch.rows or 0 for batch in written),
        files=sum(batch.files or 0 for batch in written),
        bytes=sum(batch.bytes or 0 for batch in written),
        restarts={writer.flow: _restart(history, writer.flow) for writer in table.flows if flow in (None, writer.flow)},
        faults=[*faults.table_faults(history, entries), *faults.checkpoint_faults(history, entries)],
        newest=[
            history.with_checkpoint_details(entry) if isinstance(entry, BatchRecord) else entry
            for entry in islice(listed, limit)
        ],
    )


def _restart(history: BatchHistory, flow: str) -> Restart | None:
    generations = history.generations(flow)
    if not generations:
        return None
    try:
        return checkpoint_files.restart(generations[max(generations)].path)
    except FlowBroken:
        return None


def utc_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"
