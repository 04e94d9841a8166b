"""Where a flow's next generation begins: where the table's last commit of it ended, by its own stamp."""

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any
from urllib.parse import quote

import pyarrow.compute as pc  # type: ignore[import-untyped]

from include.errors import Broken
from include.readers import active_commits, landing_folder, stored_rows, topics
from include.readers.batches import BACKFILL
from include.readers.delta_backlog import Feed
from include.readers.delta_log import Commit, Log
from include.readers.kafka_retention import Lost
from include.readers.landing_folder import Taken
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table, Upsert


@dataclass(frozen=True)
class Beginning:
    """Where a generation starts.

    offset: as in Spark's checkpoint; None for the source's beginning.
    after: generation and batch of the commit it follows; None where it follows none.
    lost: what of its topic is skipped because Kafka no longer holds it.
    files: those that its table holds already.
    """

    offset: Any = None
    after: tuple[int, int] | None = None
    lost: tuple[Lost, ...] = ()
    files: tuple[Taken, ...] = ()


def identity(table: Table) -> dict[str, Any]:
    """What has to stay the same for a checkpoint to be of use: source, write mode, keys. Raises Unreachable."""
    if isinstance(table.source, Kafka):
        source = topics.source(table.source)
    elif isinstance(table.source, Files):
        source = {"folder": settings().folder(table.source.path)}
    else:
        assert isinstance(table.source, Delta), "a flow has one source"
        # A checkpoint of appends is none of changes.
        source = {"table": table.source.table} | ({"changes": True} if table.source.changes else {})
    write: dict[str, Any] = {"mode": type(table.write).__name__}
    if isinstance(table.write, Upsert):
        bucket = table.write.recompute
        write |= {"keys": list(table.write.keys), "bucket": bucket and [bucket.name, bucket.of, bucket.unit]}
    return {"flow": table.flow, "source": source, "write": write}


def last_stamp(table: Table) -> dict[str, Any] | None:
    """What the flow's newest commit that was not undone says of itself; None where the table holds none of it."""
    held = (
        commit.metadata for commit, stands in active_commits.commits(Log(settings().table_path(table.name))) if stands
    )
    return next((stamp for stamp in held if stamp.get("flow") == table.flow), None)


def after_last_commit(table: Table, accepts_loss: bool) -> Beginning:
    """Where the table ends, by its own last commit. Raises Broken where its source is another now, and Unreachable."""
    stamp = last_stamp(table)
    if stamp is None and not accepts_loss:
        return Beginning()
    offset = stamp["source_to"] if stamp else None
    after = (int(stamp["generation"]), int(stamp["batch"])) if stamp else None
    was, now = stamp["source"] if stamp else {}, identity(table)["source"]
    if accepts_loss and isinstance(table.source, Kafka):
        start, lost = topics.after_loss(offset or {}, was, now)
        return Beginning(start, after, lost)
    is_same = topics.goes_on(was, now) if isinstance(table.source, Kafka) else was == now
    if stamp and not is_same:
        raise _another_source(table, was, now)
    if stamp and isinstance(table.source, Files):
        return Beginning({"logOffset": 0}, after, files=tuple(_held_files(table, stamp)))
    if stamp and isinstance(table.source, Delta):
        offset = behind_replacements(stamp["source_to"], table.source)
    return Beginning(offset, after)


def behind_replacements(offset: dict[str, Any], source: Delta, before: float = math.inf) -> dict[str, Any]:
    """Past the commits of the source that replaced what the stream has read, where they come next: a backfill, at
    which a stream of appends stops, and a rewind to where this stream stands.

    What stands in them is not left out: the reader's own range is made anew too, or called stale, and what it held
    beyond the rewind was taken back as well. before: a version; those from there on are left out.
    """
    log = Log(settings().table_path(source.table))
    feed, found = Feed(log, source.changes), offset
    version = int(offset["reservoirVersion"])
    has_begun = offset.get("isStartingVersion") or int(offset["index"]) >= 0
    if has_begun and feed.left_of(offset):
        return offset
    read = version if has_begun else version - 1
    ahead = takewhile(lambda one: one[0].version > read, active_commits.commits(log))
    for commit in reversed([commit for commit, stands in ahead if stands and commit.version < before]):
        if _replaces(commit, log, feed, read, source):
            found = {**offset, "reservoirVersion": commit.version + 1, "index": -1, "isStartingVersion": False}
        elif feed.brings(commit.version):
            break
    return found


def _replaces(commit: Commit, log: Log, feed: Feed, read: int, source: Delta) -> bool:
    """read: the newest version that the stream has read."""
    if BACKFILL in commit.metadata:
        return not source.changes
    if active_commits.REWIND not in commit.metadata:
        return False
    to = active_commits.restored_to(log, commit)
    assert to is not None
    # A stream that has read on behind that, and was not put back with it, must fail here.
    return not any(feed.brings(version) for version in range(to + 1, read + 1))


def _held_files(table: Table, stamp: dict[str, Any]) -> list[Taken]:
    """Every file up to the table's last commit: by the checkpoint that wrote it, or else by what the table holds."""
    checkpoint = settings().checkpoints(table.flow) / str(stamp["generation"])
    with suppress(Broken):
        if held := landing_folder.taken(checkpoint, stamp["source_to"]):
            return held
    assert isinstance(table.source, Files)
    folder = settings().folder(table.source.path)
    path = landing_folder.file_system(folder)[1]
    lying = {one.path.removeprefix(f"{path}/"): one.modified_ms for one in landing_folder.landed(table.source).values()}
    return [Taken(_uri(folder, name), lying.get(name, 0), 0) for name in sorted(_names(table, stamp))]


def _uri(folder: str, name: str) -> str:
    """As Java writes it, which leaves more as it is than Python does."""
    path = name if "://" in folder else f"{folder}/{name}"
    quoted = re.sub(r"[\x00-\x20\x7f-\xa0\"<>\[\]{}|\\^`#?%]", lambda found: quote(found[0]), path)
    return f"{folder}/{quoted}" if "://" in folder else f"file://{quoted}"


def _names(table: Table, stamp: dict[str, Any]) -> set[str]:
    """Files that have rows in the table, or a row of the quarantine that goes with them."""

    name = pc.field("_filename")
    stored = stored_rows.dataset(table.name)
    broken = stored_rows.dataset(table.quarantine)
    generation, batch = (pc.field(column) for column in ("_generation", "_batch"))
    last = int(stamp["generation"])
    is_done = (generation < last) | ((generation == last) & (batch <= int(stamp["batch"])))
    found: set[str] = set()
    for rows in (
        stored.to_batches(columns={"_filename": name}),
        broken.to_batches(columns={"_filename": name}, filter=is_done),
    ):
        for one in rows:
            found.update(one.column(0).unique().to_pylist())
    return found


def _another_source(table: Table, was: dict[str, Any], now: dict[str, Any]) -> Broken:
    what = f"{table.flow}: its table ends in {was}, which is another source than today's {now}"
    if isinstance(table.source, Kafka):
        remedy = "action accept data loss begins at the start of the new topic"
        return Broken(f"{what}: {remedy}", "TOPIC_REPLACED")
    remedy = "put the declaration back, or give the new one a name of its own"
    return Broken(f"{what}: {remedy}", "CHECKPOINT_OF_ANOTHER_DEFINITION")
