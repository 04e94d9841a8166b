"""What a streaming checkpoint says, read from its files without a JVM."""

import json
from pathlib import Path
from typing import Any


def newest_generation(checkpoints: Path) -> int | None:
    """The highest number among a flow's checkpoint directories."""
    return _highest(checkpoints)


def last_planned(checkpoint: Path) -> int | None:
    """The newest batch whose offsets are fixed; it is written, or will be replayed."""
    return _highest(checkpoint / "offsets")


def last_committed(checkpoint: Path) -> int | None:
    """The newest batch Spark knows to be done."""
    return _highest(checkpoint / "commits")


def end_offset(checkpoint: Path, batch: int) -> Any:
    """Where the batch ends in its source: Kafka's `{topic: {partition: next offset}}`, or Delta's source offset.

    None before the first batch.
    """
    if batch < 0:
        return None
    lines = (checkpoint / "offsets" / str(batch)).read_text().splitlines()
    # Line 0 is the format's version, line 1 the batch's settings, then one line for each source.
    return json.loads(lines[2]) if len(lines) > 2 and lines[2] != "-" else None


def read_version(offset: dict[str, Any]) -> int:
    """The newest version of the source table that a Delta offset reaches into."""
    version = int(offset["reservoirVersion"])
    # A negative index stands before the first file of that version.
    return version if int(offset["index"]) >= 0 else version - 1


def _highest(directory: Path) -> int | None:
    return max((int(entry.name) for entry in directory.glob("[0-9]*") if entry.name.isdigit()), default=None)
