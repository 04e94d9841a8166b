"""Where a flow stands in its source, as its newest checkpoint says: without a JVM."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.readers import checkpoint
from include.settings import settings


@dataclass(frozen=True)
class Position:
    """checkpoint: of the generation. planned, committed: its newest batches, None before the first.

    offset: where the committed batch ended in its source, as `checkpoint.end_offset`; None before the first.
    """

    generation: int
    checkpoint: Path
    planned: int | None
    committed: int | None
    offset: Any

    @property
    def in_flight(self) -> int | None:
        """The batch that is planned and not committed; None where there is none."""
        done = -1 if self.committed is None else self.committed
        return self.planned if self.planned is not None and self.planned > done else None


def of(flow: str) -> Position | None:
    """None before it was ever started. Raises Broken where its checkpoint is damaged."""
    home = settings().checkpoints(flow)
    generation = checkpoint.newest_generation(home)
    if generation is None:
        return None
    directory = home / str(generation)
    # In this order: a batch that is committed in between was planned.
    committed = checkpoint.last_committed(directory)
    planned = checkpoint.last_planned(directory)
    offset = None if committed is None else checkpoint.end_offset(directory, committed)
    return Position(generation, directory, planned, committed, offset)
