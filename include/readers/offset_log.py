"""The batches a checkpoint has planned, with what was frozen for them, and what a restart makes of that."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.errors import Broken
from include.readers.checkpoint import damaged, numbers

OWNER = "owner.json"


@dataclass(frozen=True)
class Planned:
    """What `offsets/N` says, in Spark's form v1 or v2. end: where the batch ends in its source, None for the beginning.

    at: when it was planned, seconds since 1970; None in a batch that a new generation was seeded with.
    conf: the Spark settings that were frozen with it.
    """

    batch: int
    end: Any
    at: float | None
    conf: dict[str, str]


@dataclass(frozen=True)
class Restart:
    """What a start of the flow does first.

    replays: the batch that is planned and not done: read again with these offsets and settings, and today's code.
    next_batch: the first whose offsets are not fixed yet. conf: the settings that hold for all batches of this
    generation, as Spark takes them from the newest planned batch whatever the session says.
    deployed: by number of the first batch, the definitions (SHA-256) that made the rows.
    """

    replays: Planned | None
    next_batch: int
    conf: dict[str, str]
    deployed: dict[int, str]

    def lines(self) -> list[str]:
        if self.replays is None:
            first = f"a restart replays nothing and plans batch {self.next_batch}"
        else:
            first = (
                f"a restart replays batch {self.replays.batch} up to {json.dumps(self.replays.end)} with its frozen "
                f"settings and today's code, then plans batch {self.next_batch}"
            )
        # What OffsetSeqMetadata freezes is set into the session at every start, and frozen again with the next batch.
        frozen = (
            f"the {len(self.conf)} Spark settings frozen in its checkpoint hold until it has a new generation; a "
            f"changed option of its source (max_offsets, max_files) and the interval hold from batch "
            f"{self.next_batch} on"
        )
        return [first, frozen] if self.conf else [first]


def batch(checkpoint: Path, number: int) -> Planned:
    """Raises Broken for a file that is missing, damaged, of another format or of several sources."""
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
    # v2 has the source's id in front of its offset.
    offset = offsets[0] if version == "v1" else offsets[0].partition(":")[2]
    try:
        said = json.loads(metadata or "{}")
        end = None if offset == "-" else json.loads(offset)
    except ValueError as error:
        raise damaged(file, "does not say where its batch ends, it was cut short") from error
    planned_ms = said.get("batchTimestampMs")
    return Planned(number, end, planned_ms / 1000 if planned_ms else None, dict(said.get("conf") or {}))


def check_commit(checkpoint: Path, number: int) -> None:
    """Raises Broken where `commits/N`, in Spark's form v1 or v2, was cut short."""
    file = checkpoint / "commits" / str(number)
    version, _, said = file.read_text(errors="replace").partition("\n")
    try:
        if version.strip() in ("v1", "v2") and isinstance(json.loads(said or "{}"), dict):
            return
    except ValueError:
        pass
    raise damaged(file, "does not say what was committed, it was cut short")


def owner(checkpoint: Path) -> dict[str, Any]:
    """What `owner.json` says. Raises Broken where it is missing or unreadable."""
    try:
        return dict(json.loads((checkpoint / OWNER).read_text()))
    except (OSError, ValueError) as error:
        raise Broken(
            f"{checkpoint / OWNER} is missing or unreadable, so nobody knows whose checkpoint that is: restore it from "
            f"its backup, or action reset checkpoint",
            "CHECKPOINT_DAMAGED",
        ) from error


def restart(checkpoint: Path) -> Restart:
    """Raises Broken where the newest planned batch cannot be read."""
    newest = max(numbers(checkpoint / "offsets"), default=-1)
    done = max(numbers(checkpoint / "commits"), default=-1)
    found = batch(checkpoint, newest) if newest >= 0 else None
    definitions = {one["from_batch"]: one["sha256"] for one in owner(checkpoint).get("definitions") or []}
    replays = found if found and newest > done else None
    return Restart(replays, newest + 1, found.conf if found else {}, definitions)


def begins(checkpoint: Path) -> Any:
    """Where a Kafka query found the beginning of its source, `{topic: {partition: offset}}`; None where nobody says."""
    try:
        # A zero byte is in front, so that old versions of Spark do not read it.
        return json.loads((checkpoint / "sources" / "0" / "0").read_text().lstrip("\0").partition("\n")[2])
    except (OSError, ValueError):
        return None
