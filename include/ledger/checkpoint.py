"""What a streaming checkpoint says, read from its files without a JVM."""

import json
from pathlib import Path
from typing import Any

from include.errors import FlowFailed


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

    None before the first batch. Raises FlowFailed for a file that is damaged or of another format.
    """
    if batch < 0:
        return None
    file = checkpoint / "offsets" / str(batch)
    match file.read_text(errors="replace").splitlines():
        # The format's version, the batch's settings, then one line for each source; a flow has one.
        case ["v1", _, "-"]:
            return None
        case ["v1", _, offset] if (end := _json(offset)) is not None:
            return end
        case [version, *_] if version != "v1":
            raise FlowFailed(f"{file} has the format {version[:20]!r}, and Sluice reads v1: restore it from backup")
        case _:
            raise FlowFailed(f"{file} does not say where its batch ends, it was cut short: restore it from backup")


def read_version(offset: dict[str, Any]) -> int:
    """The newest version of the source table that a Delta offset reaches into."""
    version = int(offset["reservoirVersion"])
    # A negative index stands before the first file of that version.
    return version if int(offset["index"]) >= 0 else version - 1


def _highest(directory: Path) -> int | None:
    return max((int(entry.name) for entry in directory.glob("[0-9]*") if entry.name.isdigit()), default=None)


def _json(text: str) -> Any:
    """The value of a JSON text, None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None
