"""Reads a Structured Streaming checkpoint from its files, without a JVM: generations, positions, planned batches.

It also tells what a restart does with a planned batch.
"""

import json
from dataclasses import dataclass
from typing import Any

from include.checkpoints import landing_folder
from include.errors import FlowBroken
from include.lake import directories, locations
from include.lake.paths import LakePath, names


def newest_generation(checkpoints: LakePath) -> int | None:
    """Returns the highest number among a flow's checkpoint directories."""
    return max(generations(checkpoints), default=None)


def generations(checkpoints: LakePath) -> set[int]:
    """Returns the numbers of a flow's checkpoint directories."""
    return {int(name) for name in directories.finished(checkpoints) if name.isdecimal()}


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
    if newest_done >= 0:
        check_commit(checkpoint, newest_done)
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
    Files: `{"logOffset": newest entry of the log in sources/0}`. Raises FlowBroken as `planned_batch`.
    """
    return None if batch < 0 else planned_batch(checkpoint, batch).end


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


OWNER = "owner.json"
# The formats of the files in `offsets` and `commits`.
FORMATS = ("v1", "v2")


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
    cut_short = "does not say where its batch ends, it was cut short"
    try:
        # The format version, the batch's metadata, then one line for each source.
        version, *lines = file.read_text(errors="replace").splitlines() or [""]
    except FileNotFoundError as error:
        raise damaged(file, "is missing") from error
    if version not in FORMATS:
        raise damaged(file, f"has the format {version[:20]!r}, and Sluice reads v1 and v2" if version else cut_short)
    if len(lines) > 2:
        raise damaged(file, f"is of {len(lines) - 1} sources, and a flow has one")
    try:
        metadata, offset = lines
        # Format v2 prefixes the offset with the source id.
        offset = offset if version == "v1" else offset.partition(":")[2]
        end, fields = None if offset == "-" else json.loads(offset), _metadata(metadata)
        planned_ms, conf = fields.get("batchTimestampMs"), dict(fields.get("conf") or {})
        if end is None and offset != "-":
            raise ValueError("null is no offset")
        return PlannedBatch(number, end, planned_ms / 1000 if planned_ms else None, conf)
    except (TypeError, ValueError) as error:
        raise damaged(file, cut_short) from error


def check_commit(checkpoint: LakePath, number: int) -> None:
    """Raises FlowBroken where `commits/N`, in Spark's format v1 or v2, was cut short."""
    file = checkpoint / "commits" / str(number)
    version, _, metadata = file.read_text(errors="replace").partition("\n")
    try:
        if version.strip() in FORMATS:
            _metadata(metadata.strip())
            return
    except ValueError:
        pass
    raise damaged(file, "does not say what was committed, it was cut short")


def _metadata(text: str) -> dict[str, Any]:
    """Returns a batch's metadata, which Spark may leave empty. Raises ValueError for anything but a JSON object."""
    if isinstance(metadata := json.loads(text or "{}"), dict):
        return metadata
    raise ValueError(f"{text[:20]!r} is no JSON object")


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


@dataclass(frozen=True)
class Position:
    """A flow's position. checkpoint: the directory of the generation. planned, committed: its newest batches or None.

    offset: where the committed batch ended in its source, as `end_offset`; None before the first batch.
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
    checkpoints = locations.checkpoints(flow)
    generation = newest_generation(checkpoints)
    if generation is None:
        return None
    directory = checkpoints / str(generation)
    # Reading `commits` first guarantees that committed is not newer than planned.
    committed = last_committed(directory)
    planned = last_planned(directory)
    offset = None if committed is None else end_offset(directory, committed)
    return Position(generation, directory, planned, committed, offset)
