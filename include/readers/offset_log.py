"""Reads the batches that a checkpoint has planned, and what a restart does with them."""

import json
from dataclasses import dataclass
from typing import Any

from include.errors import FlowBroken
from include.lake.object_path import LakePath
from include.readers.checkpoint import damaged, numbers

OWNER = "owner.json"


@dataclass(frozen=True)
class PlannedBatch:
    """The content of `offsets/N` in Spark's format v1 or v2. end: the source offset at the batch's end, None for `-`.

    at: when the batch was planned, in seconds since 1970; None in the batch that seeds a generation.
    conf: the Spark settings that Spark stored with the batch.
    """

    batch: int
    end: Any
    at: float | None
    conf: dict[str, str]


@dataclass(frozen=True)
class Restart:
    """What a start of the flow does first.

    replays: the batch that is planned and not committed. It keeps its offsets and settings, and runs today's code.
    next_batch: the first batch without offsets.
    conf: the settings of all batches of this generation. Spark takes them from the newest planned batch.
    deployed: the definition (SHA-256) of the transform, by the first batch that used it.
    """

    replays: PlannedBatch | None
    next_batch: int
    conf: dict[str, str]
    deployed: dict[int, str]


def planned_batch(checkpoint: LakePath, number: int) -> PlannedBatch:
    """Reads a planned batch. Raises FlowBroken for a missing or damaged file, another format, or several sources."""
    file = checkpoint / "offsets" / str(number)
    try:
        version, metadata, *offsets = file.read_text(errors="replace").splitlines()
    except FileNotFoundError as error:
        raise damaged(file, "is missing") from error
    except ValueError as error:
        raise damaged(file, "does not say where its batch ends, it was cut short") from error
    if version not in ("v1", "v2"):
        raise damaged(file, f"has the format {version[:20]!r}, and Sluice reads v1 and v2")
    if len(offsets) != 1:
        what = "does not say where its batch ends, it was cut short"
        raise damaged(file, f"is of {len(offsets)} sources, and a flow has one" if offsets else what)
    # Format v2 prefixes the offset with the source id.
    offset = offsets[0] if version == "v1" else offsets[0].partition(":")[2]
    try:
        batch_metadata = json.loads(metadata or "{}")
        end = None if offset == "-" else json.loads(offset)
    except ValueError as error:
        raise damaged(file, "does not say where its batch ends, it was cut short") from error
    planned_ms = batch_metadata.get("batchTimestampMs")
    return PlannedBatch(number, end, planned_ms / 1000 if planned_ms else None, dict(batch_metadata.get("conf") or {}))


def check_commit(checkpoint: LakePath, number: int) -> None:
    """Raises FlowBroken where `commits/N`, in Spark's format v1 or v2, was cut short."""
    file = checkpoint / "commits" / str(number)
    version, _, commit_metadata = file.read_text(errors="replace").partition("\n")
    try:
        if version.strip() in ("v1", "v2") and isinstance(json.loads(commit_metadata or "{}"), dict):
            return
    except ValueError:
        pass
    raise damaged(file, "does not say what was committed, it was cut short")


def owner(checkpoint: LakePath) -> dict[str, Any]:
    """Returns the content of `owner.json`. Raises FlowBroken where it is missing or unreadable."""
    try:
        return dict(json.loads((checkpoint / OWNER).read_text()))
    except (OSError, ValueError) as error:
        raise FlowBroken(
            f"{checkpoint / OWNER} is missing or unreadable, so nobody knows whose checkpoint that is: restore it from "
            f"its backup, or action reset checkpoint",
            "CHECKPOINT_DAMAGED",
        ) from error


def restart(checkpoint: LakePath) -> Restart:
    """Returns what a start of the flow does. Raises FlowBroken where the newest planned batch cannot be read."""
    newest = max(numbers(checkpoint / "offsets"), default=-1)
    newest_done = max(numbers(checkpoint / "commits"), default=-1)
    planned = planned_batch(checkpoint, newest) if newest >= 0 else None
    definitions = {
        definition["from_batch"]: definition["sha256"] for definition in owner(checkpoint).get("definitions") or []
    }
    replays = planned if planned and newest > newest_done else None
    return Restart(replays, newest + 1, planned.conf if planned else {}, definitions)


def initial_offsets(checkpoint: LakePath) -> Any:
    """Returns the offsets at which a Kafka query began, `{topic: {partition: offset}}`; None where they are unknown."""
    try:
        # Spark prefixes a zero byte, so that old versions of Spark reject the file.
        return json.loads((checkpoint / "sources" / "0" / "0").read_text().lstrip("\0").partition("\n")[2])
    except (OSError, ValueError):
        return None
