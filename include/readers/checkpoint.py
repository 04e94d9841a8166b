"""Reads a Structured Streaming checkpoint from its files, without a JVM."""

import json
from typing import Any

from include.errors import FlowBroken
from include.lake import atomic
from include.lake.object_path import LakePath, names
from include.readers import landing_folder


def newest_generation(checkpoints: LakePath) -> int | None:
    """Returns the highest number among a flow's checkpoint directories."""
    return max(generations(checkpoints), default=None)


def generations(checkpoints: LakePath) -> set[int]:
    """Returns the numbers of a flow's checkpoint directories."""
    return {int(name) for name in atomic.finished(checkpoints) if name.isdecimal()}


def last_planned(checkpoint: LakePath) -> int | None:
    """Returns the newest batch in `offsets`. It is either written or will be replayed."""
    return _highest(checkpoint / "offsets")


def last_committed(checkpoint: LakePath) -> int | None:
    """Returns the newest batch in `commits`."""
    return _highest(checkpoint / "commits")


def check(checkpoint: LakePath) -> None:
    """Raises FlowBroken where Spark cannot continue from these files. A power loss leaves files of zero bytes."""
    planned, committed = _highest(checkpoint / "offsets"), _highest(checkpoint / "commits")
    newest, newest_done = -1 if planned is None else planned, -1 if committed is None else committed
    metadata, initial_offsets = checkpoint / "metadata", checkpoint / "sources" / "0" / "0"
    if newest >= 0 or newest_done >= 0 or metadata.exists():
        check_metadata(metadata)
    if newest_done < 0 and initial_offsets.exists() and not initial_offsets.read_bytes():
        raise damaged(initial_offsets, "does not say where the source begins, it was cut short")
    # Spark also reads the batch before the newest one.
    for batch in (newest - 1, newest, newest_done):
        end = end_offset(checkpoint, batch)
        if isinstance(end, dict) and "logOffset" in end:
            landing_folder.planned_files(checkpoint, end)
    if newest_done >= 0 and not (checkpoint / "commits" / str(newest_done)).read_text(errors="replace").startswith("v"):
        raise damaged(checkpoint / "commits" / str(newest_done), "does not say what was committed, it was cut short")
    if newest - newest_done not in (0, 1):
        raise damaged(checkpoint, f"plans up to batch {planned} and is done up to {committed}, files are missing")


def check_metadata(file: LakePath) -> None:
    """Raises FlowBroken where the file is missing or unreadable."""
    try:
        json.loads(file.read_text())["id"]
    except (OSError, ValueError, KeyError) as error:
        raise damaged(file, "is missing or unreadable") from error


def end_offset(checkpoint: LakePath, batch: int) -> Any:
    """Returns the source offset at which a batch ends; None before the first batch.

    Kafka: `{topic: {partition: next offset}}`. Delta: Delta's source offset.
    Files: `{"logOffset": newest entry of the log in sources/0}`.
    Raises FlowBroken for a file that is missing, damaged or of another format.
    """
    if batch < 0:
        return None
    file = checkpoint / "offsets" / str(batch)
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError as error:
        raise damaged(file, "is missing") from error
    match text.splitlines():
        # The format version, the batch's settings, then one line for each source. A flow has one source.
        case ["v1", _, "-"]:
            return None
        case ["v1", _, offset] if (end := _json(offset)) is not None:
            return end
        case [version, *_] if version != "v1":
            raise damaged(file, f"has the format {version[:20]!r}, and Sluice reads v1")
        case _:
            raise damaged(file, "does not say where its batch ends, it was cut short")


def positions(offset: dict[str, Any] | None, topic: str) -> dict[int, int]:
    """Returns the next offset of each partition of a topic, from a Kafka offset; empty for a topic not read yet."""
    return {int(partition): next_offset for partition, next_offset in (offset or {}).get(topic, {}).items()}


def read_version(offset: dict[str, Any]) -> int:
    """Returns the newest version of the source table of which a Delta offset covers files."""
    version = int(offset["reservoirVersion"])
    # A negative index lies before the first file of that version.
    return version if int(offset["index"]) >= 0 else version - 1


def damaged(file: LakePath, what: str) -> FlowBroken:
    """Returns the error for a damaged file of a checkpoint. what: the fault, in words."""
    return FlowBroken(
        f"{file} {what}: restore it from its backup, or let the flow begin a new generation of its checkpoint where "
        f"its table ends (action reset checkpoint)",
        "CHECKPOINT_DAMAGED",
    )


def numbers(directory: LakePath) -> set[int]:
    """Returns the directory's entries whose name is a number: the batches in `offsets` and `commits`."""
    return {int(name) for name in names(directory) if name.isdecimal()}


def _highest(directory: LakePath) -> int | None:
    return max(numbers(directory), default=None)


def _json(text: str) -> Any:
    """Returns the value of a JSON text, or None where the text is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None
