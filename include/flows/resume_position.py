"""Finds where a flow's next generation begins: where the flow's last commit to its table ended."""

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from unicodedata import category
from urllib.parse import quote

import pyarrow.compute as pc

from include.checkpoints import landing_folder
from include.checkpoints.landing_folder import PlannedFile
from include.delta import commit_history, stored_table
from include.delta.backlog import StreamSource
from include.delta.delta_log import Commit, DeltaLog
from include.errors import FlowBroken
from include.flows.batches import BACKFILL
from include.kafka import topics
from include.kafka.retention import LostOffsets
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table, Upsert

# Unicode categories of spaces, and of separators of lines and paragraphs.
SEPARATORS = ("Zs", "Zl", "Zp")


@dataclass(frozen=True)
class StartPosition:
    """Where a generation begins.

    offset: in Spark's checkpoint format; None for the source's beginning.
    after: generation and batch of the commit that it follows; None where it follows none.
    lost: what it skips because Kafka no longer holds it.
    files: the files that the table already holds.
    """

    offset: Any = None
    after: tuple[int, int] | None = None
    lost: tuple[LostOffsets, ...] = ()
    files: tuple[PlannedFile, ...] = ()


def identity(table: Table) -> dict[str, Any]:
    """Returns what must stay the same for a checkpoint to be usable: source, write mode, keys. Raises Unreachable."""
    if isinstance(table.source, Kafka):
        source = topics.source_identity(table.source)
    elif isinstance(table.source, Files):
        source = {"folder": settings().folder(table.source.path)}
    else:
        assert isinstance(table.source, Delta), "a flow has one source"
        # A checkpoint of appends cannot continue as one of the change feed.
        source = {"table": table.source.table} | ({"changes": True} if table.source.changes else {})
    write: dict[str, Any] = {"mode": type(table.write).__name__}
    if isinstance(table.write, Upsert):
        bucket = table.write.recompute
        write |= {"keys": list(table.write.keys), "bucket": bucket and [bucket.name, bucket.of, bucket.unit]}
        if table.merges_changes:
            write |= {"sequence_by": table.write.sequence_by, "scd": table.write.scd}
    return {"flow": table.flow, "source": source, "write": write}


def last_commit_metadata(table: Table) -> dict[str, Any] | None:
    """Returns the userMetadata of the flow's newest active commit; None where the table has none."""
    active = (
        commit.metadata
        for commit, is_active in commit_history.commits_with_activity(DeltaLog(settings().table_path(table.name)))
        if is_active
    )
    return next((metadata for metadata in active if metadata.get("flow") == table.flow), None)


def after_last_commit(table: Table, accepts_loss: bool) -> StartPosition:
    """Returns where the flow's last commit to its table ended.

    accepts_loss: continues behind what Kafka no longer holds. Raises FlowBroken for a changed source, and Unreachable.
    """
    metadata = last_commit_metadata(table)
    if metadata is None and not accepts_loss:
        return StartPosition()
    offset = metadata["source_to"] if metadata else None
    after = (int(metadata["generation"]), int(metadata["batch"])) if metadata else None
    previous, current = metadata["source"] if metadata else {}, identity(table)["source"]
    if accepts_loss and isinstance(table.source, Kafka):
        start, lost = topics.after_loss(table.source, offset or {}, previous, current)
        return StartPosition(start, after, lost)
    is_same = topics.is_continuation(previous, current) if isinstance(table.source, Kafka) else previous == current
    if metadata and not is_same:
        raise _another_source(table, previous, current)
    if metadata and isinstance(table.source, Files):
        return StartPosition({"logOffset": 0}, after, files=tuple(_held_files(table, metadata)))
    if metadata and isinstance(table.source, Delta):
        offset = skip_replacements(metadata["source_to"], table.source)
    return StartPosition(offset, after)


def skip_replacements(offset: dict[str, Any], source: Delta, before: float = math.inf) -> dict[str, Any]:
    """Returns the offset after the next source commits that replaced rows which the stream has read.

    These are backfills, at which a stream of appends fails, and rewinds to the stream's position. No rows are left out:
    the reader's range is backfilled too or marked STALE, and a rewind takes the reader back as well.
    before: a version. Commits from this version on do not count.
    """
    log = DeltaLog(settings().table_path(source.table))
    feed, resume_offset = StreamSource(log, source.changes), offset
    version = int(offset["reservoirVersion"])
    has_begun = offset.get("isStartingVersion") or int(offset["index"]) >= 0
    if has_begun and feed.left_of(offset):
        return offset
    read = version if has_begun else version - 1
    commits_ahead = takewhile(lambda entry: entry[0].version > read, commit_history.commits_with_activity(log))
    for commit in reversed([commit for commit, is_active in commits_ahead if is_active and commit.version < before]):
        if _replaces(commit, log, feed, read, source):
            resume_offset = {**offset, "reservoirVersion": commit.version + 1, "index": -1, "isStartingVersion": False}
        elif feed.brings(commit.version):
            break
    return resume_offset


def _replaces(commit: Commit, log: DeltaLog, feed: StreamSource, read: int, source: Delta) -> bool:
    """Returns whether a stream must skip this commit. read: the newest version that the stream has read."""
    if BACKFILL in commit.metadata:
        return not source.changes
    if commit_history.REWIND not in commit.metadata:
        return False
    restored = commit_history.restored_to(log, commit)
    assert restored is not None
    # A stream that has read undone versions, and was not rewound with the source, must fail here.
    return not any(feed.brings(version) for version in range(restored + 1, read + 1))


def _held_files(table: Table, metadata: dict[str, Any]) -> list[PlannedFile]:
    """Returns the files up to the last commit, from its checkpoint or, without it, from the table's `_filename`."""
    checkpoint = settings().checkpoints(table.flow) / str(metadata["generation"])
    with suppress(FlowBroken):
        if files := landing_folder.planned_files(checkpoint, metadata["source_to"]):
            return files
    assert isinstance(table.source, Files)
    folder = settings().folder(table.source.path)
    path = landing_folder.file_system(folder)[1]
    modified_ms = {
        file.path.removeprefix(f"{path}/"): file.modified_ms
        for file in landing_folder.files_in_folder(table.source).values()
    }
    return [
        PlannedFile(_java_uri(folder, name), modified_ms.get(name, 0), 0)
        for name in sorted(_stored_file_names(table, metadata))
    ]


def _java_uri(folder: str, name: str) -> str:
    """Returns the file's URI as Java writes it. Java escapes fewer characters than Python does: those that a URI may
    not have, control characters and every kind of blank.
    """
    path = name if "://" in folder else f"{folder}/{name}"
    quoted = re.sub(r"[\x00-\x20\x7f-\x9f\"<>\[\]{}|\\^`#?%]", lambda match: quote(match[0]), path)
    quoted = "".join(quote(character) if category(character) in SEPARATORS else character for character in quoted)
    return f"{folder}/{quoted}" if "://" in folder else f"file://{quoted}"


def _stored_file_names(table: Table, metadata: dict[str, Any]) -> set[str]:
    """Returns the files with rows in the table, or with committed rows in its quarantine."""

    name = pc.field("_filename")
    stored = stored_table.dataset(table.name)
    quarantined = stored_table.dataset(table.quarantine)
    generation, batch = (pc.field(column) for column in ("_generation", "_batch"))
    last_generation = int(metadata["generation"])
    is_committed = (generation < last_generation) | (
        (generation == last_generation) & (batch <= int(metadata["batch"]))
    )
    names: set[str] = set()
    for rows in (
        stored.to_batches(columns={"_filename": name}),
        quarantined.to_batches(columns={"_filename": name}, filter=is_committed),
    ):
        for record_batch in rows:
            names.update(record_batch.column(0).unique().to_pylist())
    return names


def _another_source(table: Table, previous: dict[str, Any], current: dict[str, Any]) -> FlowBroken:
    what = f"{table.flow}: its table ends in {previous}, which is another source than today's {current}"
    if isinstance(table.source, Kafka):
        remedy = "action accept data loss begins at the start of the new topic"
        return FlowBroken(f"{what}: {remedy}", "TOPIC_REPLACED")
    remedy = "restore the declaration, or give the new one a name of its own"
    return FlowBroken(f"{what}: {remedy}", "CHECKPOINT_OF_ANOTHER_DEFINITION")
