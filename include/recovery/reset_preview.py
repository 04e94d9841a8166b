"""python -m include.ledger rebuild FLOW: what `reset checkpoint` would do now. Nothing is written."""

import json
from dataclasses import dataclass
from typing import Any

from include.errors import Unreachable
from include.ledger import faults
from include.readers import batches, resume_position
from include.readers.batches import BatchHistory, BatchRecord
from include.readers.checkpoint import newest_generation
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table


@dataclass(frozen=True)
class Rebuild:
    """A new generation of a flow's checkpoint that nobody has begun.

    after: the batch whose end it goes on from, None where it begins with all that its source holds; version: its
    commit. offset: where that is, in Spark's form. abandons: batches that were planned and not written; their rows are
    read again, in batches of other sizes. warnings: what would be left out, and what could not be asked.
    """

    flow: str
    generation: int
    after: str | None
    version: int | None
    offset: Any
    files: int
    abandons: list[str]
    warnings: list[str]

    def lines(self) -> list[str]:
        if self.after is None:
            where = "at the beginning of its source, as its table holds no batch of it"
        else:
            where = f"behind {self.after}, version {self.version} of its table, at {json.dumps(self.offset)}"
        found = [f"{self.flow}: a reset would begin generation {self.generation} {where}"]
        if self.files:
            found.append(f"  {self.files:,} files count as read")
        found += [f"  {name} was planned and not written: its rows are read again" for name in self.abandons]
        found += [f"  {warning}" for warning in self.warnings]
        asked = json.dumps({"flow": self.flow, "action": "reset checkpoint", "reason": "..."})
        return [*found, f"  nothing was written; to do it: airflow dags trigger control.stream -c '{asked}'"]


def plan(flow: Table) -> Rebuild:
    """By the same rule as a start of the flow. Raises Broken where that would refuse it, and Unreachable where the
    table is not stored.
    """
    account = BatchHistory(flow)
    own = list(account.batches(flow.flow))
    warnings = [fault.sentence for fault in faults.of_checkpoints(account, own)]
    stamp = resume_position.last_stamp(flow)
    after = (int(stamp["generation"]), int(stamp["batch"])) if stamp else None
    try:
        begins = resume_position.after_last_commit(flow, accepts_loss=False)
        offset, files = begins.offset, len(begins.files)
    except Unreachable as error:
        offset, files = stamp["source_to"] if stamp else None, 0
        warnings.append(f"whether its source is still the same was not asked: {error}")
    newest = newest_generation(settings().checkpoints(flow.flow)) or 0
    commit = next((one for one in own if (one.generation, one.batch) == after and one.version is not None), None)
    return Rebuild(
        flow=flow.flow,
        generation=max(newest, after[0] if after else 0) + 1,
        after=commit.name if commit else None,
        version=commit.version if commit else None,
        offset=offset,
        files=files,
        abandons=[one.name for one in own if one.state == batches.PLANNED],
        warnings=warnings + _warnings(flow, own, commit),
    )


def _warnings(flow: Table, own: list[BatchRecord], last: BatchRecord | None) -> list[str]:
    """What the rule does not look at. last: the batch behind which it goes on."""
    found = []
    if last and last.state == batches.UNDONE:
        found.append(
            f"LEFT OUT: an overwrite has replaced {last.name} and all before it, and a reset goes on behind it all the "
            f"same, so what it replaced would not come into the table again: put the table back to version "
            f"{last.version} first"
        )
    if missing := [one.name for one in own if one.state == batches.MISSING]:
        found.append(f"LEFT OUT: the table lacks {', '.join(missing[:5])}, which lie before that place")
    if last is None and isinstance(flow.source, Kafka):
        found.append("what Kafka's retention has deleted cannot be read again: see the runbook of accept data loss")
    if last is None and isinstance(flow.source, Delta | Files):
        found.append(f"everything that {flow.source} holds would be read")
    return found
