"""python -m include.ledger inspect TABLE: its batches, its other commits, what a restart will do, what is wrong."""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from include.errors import Broken
from include.ledger import faults
from include.ledger.faults import Fault
from include.readers import offset_log
from include.readers.batches import HELD, BatchHistory, BatchRecord, Other
from include.readers.offset_log import Restart
from include.spec import Table


@dataclass(frozen=True)
class Inspection:
    """A stored table. versions: the oldest and newest in its log.

    states: how many batches are in which. others: how many commits of each kind are no batch's. rows, files, bytes:
    what the batches added that the table still holds and its log still tells of. restarts: by flow, None where its
    checkpoint does not say. newest: first.
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
    newest: list[BatchRecord | Other]


def inspect(table: Table, limit: int, flow: str | None = None) -> Inspection:
    """flow: look for the newest batches of this one only. Raises Unreachable where it is not stored, and Broken."""
    account = BatchHistory(table)
    entries = list(account.entries())
    held = [one for one in entries if isinstance(one, BatchRecord) and one.state in HELD]
    shown = (one for one in entries if flow is None or (isinstance(one, BatchRecord) and one.flow == flow))
    return Inspection(
        table=table.name,
        versions=(account.log.versions[0], account.log.newest),
        states=dict(Counter(one.state for one in entries if isinstance(one, BatchRecord))),
        others=dict(Counter(one.kind for one in entries if isinstance(one, Other))),
        rows=sum(one.rows or 0 for one in held),
        files=sum(one.files or 0 for one in held),
        bytes=sum(one.bytes or 0 for one in held),
        restarts={one.flow: _restart(account, one.flow) for one in table.flows if flow in (None, one.flow)},
        faults=[*faults.of_table(account, entries), *faults.of_checkpoints(account, entries)],
        newest=[account.detailed(one) if isinstance(one, BatchRecord) else one for one in islice(shown, limit)],
    )


def _restart(account: BatchHistory, flow: str) -> Restart | None:
    generations = account.generations(flow)
    if not generations:
        return None
    try:
        return offset_log.restart(generations[max(generations)].path)
    except Broken:
        return None


def at(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"
