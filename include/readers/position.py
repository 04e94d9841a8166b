"""Reads a flow's position in its source from its newest checkpoint, without a JVM."""

from dataclasses import dataclass
from typing import Any

from include.lake.object_path import LakePath
from include.readers import checkpoint
from include.settings import settings


@dataclass(frozen=True)
class Position:
    """A flow's position. checkpoint: the directory of the generation. planned, committed: its newest batches or None.

    offset: where the committed batch ended in its source, as `checkpoint.end_offset`; None before the first batch.
    """

    generation: int
    checkpoint: LakePath
    planned: int | None
    committed: int | None
    offset: Any

    @property
    def in_flight(self) -> int | None:
        """The batch that is planned and not committed; None where there is none."""
        newest_done = -1 if self.committed is None else self.committed
        return self.planned if self.planned is not None and self.planned > newest_done else None


def position_of(flow: str) -> Position | None:
    """Returns a flow's position; None before its first start. Raises FlowBroken where its checkpoint is damaged."""
    checkpoints = settings().checkpoints(flow)
    generation = checkpoint.newest_generation(checkpoints)
    if generation is None:
        return None
    directory = checkpoints / str(generation)
    # Reading `commits` first guarantees that committed is not newer than planned.
    committed = checkpoint.last_committed(directory)
    planned = checkpoint.last_planned(directory)
    offset = None if committed is None else checkpoint.end_offset(directory, committed)
    return Position(generation, directory, planned, committed, offset)
