"""Which batch a flow would leave out if it were asked to now."""

from include.checkpoints import checkpoint_files, offset_ranges
from include.control.skips import PlannedBatch
from include.errors import UsageError
from include.flows import resume_position
from include.settings import settings
from include.spec import Table


def planned(flow: Table) -> PlannedBatch:
    """Returns the batch that the flow has planned and not written.

    Raises UsageError if there is none, and FlowBroken for a damaged checkpoint.
    """
    home = settings().checkpoints(flow.flow)
    generation = checkpoint_files.newest_generation(home)
    batch = None if generation is None else checkpoint_files.last_planned(home / str(generation))
    metadata = resume_position.last_commit_metadata(flow) if settings().is_stored(flow.name) else None
    written = (metadata["generation"], metadata["batch"]) if metadata else (0, -1)
    if generation is None or batch is None or (generation, batch) <= written:
        raise UsageError(f"{flow.flow} has no batch that is planned and not written: there is nothing to skip")
    path = home / str(generation)
    begin, end = checkpoint_files.end_offset(path, batch - 1), checkpoint_files.end_offset(path, batch)
    if batch == 0 and isinstance(end, dict) and "reservoirVersion" not in end and "logOffset" not in end:
        begin = checkpoint_files.initial_offsets(path)
    source = checkpoint_files.owner(path).get("source")
    return PlannedBatch(generation, batch, offset_ranges.describe(source, begin, end))
