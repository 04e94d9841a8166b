"""Where a flow's next generation begins: where the table's last commit of it ended, by its own stamp."""

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake import DeltaTable

from include.errors import Broken
from include.ledger import landing, topics
from include.ledger.appended import Appends
from include.ledger.batches import BACKFILL
from include.ledger.landing import Taken
from include.ledger.log import Log
from include.ledger.retention import Lost
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
    """What the flow's newest commit says of itself; None where the table holds none of it."""
    stamps = (commit.metadata for commit in Log(settings().table_path(table.name)).commits())
    return next((stamp for stamp in stamps if stamp.get("flow") == table.flow), None)


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
    if stamp and isinstance(table.source, Delta) and not table.source.changes:
        offset = behind_backfills(stamp["source_to"], table.source.table)
    return Beginning(offset, after)


def behind_backfills(offset: dict[str, Any], source: str) -> dict[str, Any]:
    """Past the commits that replaced a range of the source, where they come next: what a stream of appends stops at.

    What stands in them is not left out: a backfill makes the range anew in the reader too, or calls it stale.
    """
    log = Log(settings().table_path(source))
    appends = Appends(log, Delta(source))
    version = int(offset["reservoirVersion"])
    if offset.get("isStartingVersion"):
        if appends.left_of(offset):
            return offset
        version += 1
    present = set(log.versions)
    while version in present:
        if BACKFILL in log.commit(version).metadata:
            offset = _at(offset, version + 1)
        elif appends.left_of(offset if version == int(offset["reservoirVersion"]) else _at(offset, version)):
            break
        version += 1
    return offset


def _at(offset: dict[str, Any], version: int) -> dict[str, Any]:
    return {**offset, "reservoirVersion": version, "index": -1, "isStartingVersion": False}


def _held_files(table: Table, stamp: dict[str, Any]) -> list[Taken]:
    """Every file up to the table's last commit: by the checkpoint that wrote it, or else by what the table holds."""
    checkpoint = settings().checkpoints(table.flow) / str(stamp["generation"])
    with suppress(Broken):
        if held := landing.taken(checkpoint, stamp["source_to"]):
            return held
    assert isinstance(table.source, Files)
    folder = settings().folder(table.source.path)
    path = landing.file_system(folder)[1]
    lying = {one.path.removeprefix(f"{path}/"): one.modified_ms for one in landing.landed(table.source).values()}
    return [Taken(_uri(folder, name), lying.get(name, 0), 0) for name in sorted(_names(table, stamp))]


def _uri(folder: str, name: str) -> str:
    """As Java writes it, which leaves more as it is than Python does."""
    path = name if "://" in folder else f"{folder}/{name}"
    quoted = re.sub(r"[\x00-\x20\x7f-\xa0\"<>\[\]{}|\\^`#?%]", lambda found: quote(found[0]), path)
    return f"{folder}/{quoted}" if "://" in folder else f"file://{quoted}"


def _names(table: Table, stamp: dict[str, Any]) -> set[str]:
    """Files that have rows in the table, or a row of the quarantine that goes with them."""

    name = pc.field("_filename")
    stored = DeltaTable(str(settings().table_path(table.name))).to_pyarrow_dataset()
    broken = DeltaTable(str(settings().table_path(table.quarantine))).to_pyarrow_dataset()
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
