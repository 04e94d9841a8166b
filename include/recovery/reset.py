"""Previews what `reset checkpoint` and `skip` would do to a flow now. Nothing is written."""

from dataclasses import dataclass
from typing import Any

from include.checkpoints import checkpoint_files, offset_ranges
from include.checkpoints.checkpoint_files import newest_generation
from include.control.skips import BatchToSkip
from include.errors import Unreachable, UsageError
from include.flows import batches, resume_position
from include.flows.batches import BatchHistory, BatchRecord
from include.flows.source import commit_of
from include.lake import locations
from include.ledger import inspection
from include.spec import Flow


@dataclass(frozen=True)
class ResetPreview:
    """The new generation that a reset of the checkpoint would begin.

    after: the batch after which it continues, None for the beginning of its source. version: that batch's commit.
    offset: the offset at which it continues, in Spark's format. files: how many files count as read.
    abandons: planned, unwritten batches. Their rows are read again, in batches of other sizes.
    warnings: rows that would be left out, and checks that were not possible.
    """

    flow: str
    generation: int
    after: str | None
    version: int | None
    offset: Any
    files: int
    abandons: list[str]
    warnings: list[str]


def plan(flow: Flow) -> ResetPreview:
    """Previews a reset, by the rule that a start of the flow uses.

    Raises FlowBroken where that start would be refused, and Unreachable where the table is not stored.
    """
    history = BatchHistory(flow)
    flow_batches = list(history.batches(flow.flow))
    warnings = [fault.sentence for fault in inspection.checkpoint_faults(history, flow_batches)]
    metadata = resume_position.last_commit_metadata(flow)
    after = commit_of(metadata)
    try:
        begins = resume_position.after_last_commit(flow, accepts_loss=False)
        offset, files = begins.offset, len(begins.files)
    except Unreachable as error:
        offset, files = metadata["source_to"] if metadata else None, 0
        warnings.append(f"whether its source is still the same was not asked: {error}")
    newest = newest_generation(locations.checkpoints(flow.flow)) or 0
    last_batch = next(
        (batch for batch in flow_batches if (batch.generation, batch.batch) == after and batch.version is not None),
        None,
    )
    return ResetPreview(
        flow=flow.flow,
        generation=max(newest, after[0] if after else 0) + 1,
        after=last_batch.name if last_batch else None,
        version=last_batch.version if last_batch else None,
        offset=offset,
        files=files,
        abandons=[batch.name for batch in flow_batches if batch.state == batches.PLANNED],
        warnings=warnings + _warnings(flow, flow_batches, last_batch),
    )


def _warnings(flow: Flow, flow_batches: list[BatchRecord], last: BatchRecord | None) -> list[str]:
    """Returns warnings about what the rule ignores. last: the batch after which it continues."""
    warnings = []
    if last and last.state == batches.UNDONE:
        warnings.append(
            f"LEFT OUT: an overwrite has replaced {last.name} and all before it, and a reset goes on behind it all the "
            f"same, so what it replaced would not come into the table again: restore the table to version "
            f"{last.version} first"
        )
    if missing := [batch.name for batch in flow_batches if batch.state == batches.MISSING]:
        warnings.append(f"LEFT OUT: the table lacks {', '.join(missing[:5])}, which lie before that place")
    if last is None and flow.source.reads_topics:
        warnings.append("what Kafka's retention has deleted cannot be read again: see the runbook of accept data loss")
    elif last is None:
        warnings.append(f"everything that {flow.source} holds would be read")
    return warnings


def planned(flow: Flow) -> BatchToSkip:
    """Returns the batch that the flow has planned and not written.

    Raises UsageError if there is none, and FlowBroken for a damaged checkpoint.
    """
    home = locations.checkpoints(flow.flow)
    generation = checkpoint_files.newest_generation(home)
    batch = None if generation is None else checkpoint_files.last_planned(home / str(generation))
    metadata = resume_position.last_commit_metadata(flow) if locations.is_stored(flow.name) else None
    written = commit_of(metadata) or (0, -1)
    if generation is None or batch is None or (generation, batch) <= written:
        raise UsageError(f"{flow.flow} has no batch that is planned and not written: there is nothing to skip")
    path = home / str(generation)
    begin, end = checkpoint_files.end_offset(path, batch - 1), checkpoint_files.end_offset(path, batch)
    if batch == 0 and isinstance(end, dict) and "reservoirVersion" not in end and "logOffset" not in end:
        begin = checkpoint_files.initial_offsets(path)
    source = checkpoint_files.owner(path).get("source")
    return BatchToSkip(generation, batch, offset_ranges.describe(source, begin, end))
