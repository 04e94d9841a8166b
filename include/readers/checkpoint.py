"""What a streaming checkpoint says, read from its files without a JVM."""

import json
import os
from pathlib import Path
from typing import Any

from include.errors import Broken
from include.readers import landing_folder


def newest_generation(checkpoints: Path) -> int | None:
    """The highest number among a flow's checkpoint directories."""
    return _highest(checkpoints)


def last_planned(checkpoint: Path) -> int | None:
    """The newest batch whose offsets are fixed; it is written, or will be replayed."""
    return _highest(checkpoint / "offsets")


def last_committed(checkpoint: Path) -> int | None:
    """The newest batch Spark knows to be done."""
    return _highest(checkpoint / "commits")


def check(checkpoint: Path) -> None:
    """Raises Broken where Spark could not go on from these files: a power loss leaves files of zero bytes."""
    planned, committed = _highest(checkpoint / "offsets"), _highest(checkpoint / "commits")
    newest, done = -1 if planned is None else planned, -1 if committed is None else committed
    metadata, beginning = checkpoint / "metadata", checkpoint / "sources" / "0" / "0"
    if newest >= 0 or done >= 0 or metadata.exists():
        check_metadata(metadata)
    if done < 0 and beginning.exists() and not beginning.read_bytes():
        raise damaged(beginning, "does not say where the source begins, it was cut short")
    # Spark reads the one before the newest as well.
    for batch in (newest - 1, newest, done):
        end = end_offset(checkpoint, batch)
        if isinstance(end, dict) and "logOffset" in end:
            landing_folder.taken(checkpoint, end)
    if done >= 0 and not (checkpoint / "commits" / str(done)).read_text(errors="replace").startswith("v"):
        raise damaged(checkpoint / "commits" / str(done), "does not say what was committed, it was cut short")
    if newest - done not in (0, 1):
        raise damaged(checkpoint, f"plans up to batch {planned} and is done up to {committed}, files are missing")


def check_metadata(file: Path) -> None:
    """Raises Broken where it is missing or unreadable."""
    try:
        json.loads(file.read_text())["id"]
    except (OSError, ValueError, KeyError) as error:
        raise damaged(file, "is missing or unreadable") from error


def end_offset(checkpoint: Path, batch: int) -> Any:
    """Where the batch ends in its source: Kafka's `{topic: {partition: next offset}}`, Delta's source offset, or
    for files `{"logOffset": newest entry of the log in sources/0}`.

    None before the first batch. Raises Broken for a file that is missing, damaged or of another format.
    """
    if batch < 0:
        return None
    file = checkpoint / "offsets" / str(batch)
    if not file.exists():
        raise damaged(file, "is missing")
    match file.read_text(errors="replace").splitlines():
        # The format's version, the batch's settings, then one line for each source; a flow has one.
        case ["v1", _, "-"]:
            return None
        case ["v1", _, offset] if (end := _json(offset)) is not None:
            return end
        case [version, *_] if version != "v1":
            raise damaged(file, f"has the format {version[:20]!r}, and Sluice reads v1")
        case _:
            raise damaged(file, "does not say where its batch ends, it was cut short")


def positions(offset: dict[str, Any] | None, topic: str) -> dict[int, int]:
    """The next offset of each partition of a topic, out of Kafka's source offset; empty for one not read yet."""
    return {int(partition): position for partition, position in (offset or {}).get(topic, {}).items()}


def read_version(offset: dict[str, Any]) -> int:
    """The newest version of the source table that a Delta offset reaches into."""
    version = int(offset["reservoirVersion"])
    # A negative index stands before the first file of that version.
    return version if int(offset["index"]) >= 0 else version - 1


def damaged(file: Path, what: str) -> Broken:
    """What is to be raised for such a file."""
    return Broken(
        f"{file} {what}: restore it from its backup, or let the flow begin a new generation of its checkpoint where "
        f"its table ends (action reset checkpoint)",
        "CHECKPOINT_DAMAGED",
    )


def numbers(directory: Path) -> set[int]:
    """What its entries are called, where that is a number: batches in `offsets` and `commits`."""
    try:
        with os.scandir(directory) as entries:
            return {int(entry.name) for entry in entries if entry.name.isdecimal()}
    except FileNotFoundError:
        return set()


def _highest(directory: Path) -> int | None:
    return max(numbers(directory), default=None)


def _json(text: str) -> Any:
    """The value of a JSON text, None where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None
