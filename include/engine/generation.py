"""Begins a generation of a flow's checkpoint: the first, or one that goes on where the table's last commit ended."""

import json
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from include.errors import Broken
from include.ledger import kafka, retention
from include.ledger.retention import Lost
from include.settings import settings
from include.spec import Kafka, Table, Upsert

OWNER = "owner.json"
RECENT_COMMITS = 100


@dataclass(frozen=True)
class Beginning:
    """Where a generation starts.

    offset: as in Spark's checkpoint; None for the source's beginning.
    after: generation and batch of the commit it follows; None where it follows none.
    lost: what of its topic is skipped because Kafka no longer holds it.
    """

    offset: Any = None
    after: tuple[int, int] | None = None
    lost: tuple[Lost, ...] = ()


def identity(table: Table) -> dict[str, Any]:
    """What has to stay the same for a checkpoint to be of use: source, write mode, keys. Raises Unreachable."""
    if isinstance(table.source, Kafka):
        topic = kafka.identity(settings().kafka, table.source.topic)
        source = {"topic": table.source.topic, "topic_id": topic.topic_id, "cluster_id": topic.cluster_id}
    else:
        # A checkpoint of appends is none of changes.
        source = {"table": table.source.table} | ({"changes": True} if table.source.changes else {})
    write: dict[str, Any] = {"mode": type(table.write).__name__}
    if isinstance(table.write, Upsert):
        bucket = table.write.recompute
        write |= {"keys": list(table.write.keys), "bucket": [bucket.name, bucket.of, bucket.unit]}
    return {"flow": table.name, "source": source, "write": write}


def last_stamp(table: Table) -> dict[str, Any] | None:
    """What the flow's newest commit says of itself; None where the table holds none of it."""
    stored = DeltaTable(str(settings().table_path(table.name)))
    for limit in (RECENT_COMMITS, None):
        for commit in stored.history(limit):
            stamp = _stamp(commit.get("userMetadata") or "")
            if stamp.get("flow") == table.name:
                return stamp
    return None


def _stamp(text: str) -> dict[str, Any]:
    """Empty where somebody else wrote something of his own there."""
    try:
        stamp = json.loads(text)
    except ValueError:
        return {}
    return stamp if isinstance(stamp, dict) else {}


def after_last_commit(table: Table, accepts_loss: bool) -> Beginning:
    """Where the table ends, by its own last commit. Raises Broken where its source is another now, and Unreachable."""
    stamp = last_stamp(table)
    if stamp is None and not accepts_loss:
        return Beginning()
    offset = stamp["source_to"] if stamp else None
    after = (int(stamp["generation"]), int(stamp["batch"])) if stamp else None
    is_same = stamp is None or stamp["source"] == identity(table)["source"]
    if accepts_loss and isinstance(table.source, Kafka):
        return _after_loss(table.source.topic, offset or {}, is_same, after)
    if not is_same:
        raise _another_source(table, stamp["source"])
    return Beginning(offset, after)


def _another_source(table: Table, was: dict[str, Any]) -> Broken:
    what = f"{table.name}: its table ends in {was}, which is another source than today's {identity(table)['source']}"
    if isinstance(table.source, Kafka):
        remedy = "action accept data loss begins at the start of the new topic"
        return Broken(f"{what}: {remedy}", "TOPIC_REPLACED")
    remedy = "put the declaration back, or give the new one a name of its own"
    return Broken(f"{what}: {remedy}", "CHECKPOINT_OF_ANOTHER_DEFINITION")


def _after_loss(topic: str, offset: dict[str, Any], is_same: bool, after: tuple[int, int] | None) -> Beginning:
    begin = kafka.begin_offsets(settings().kafka, topic)
    read = {int(partition): position for partition, position in offset.get(topic, {}).items()}
    if is_same:
        lost = tuple(retention.lost(settings().kafka, topic, {p: read.get(p, 0) for p in begin}))
        after_loss = {one.partition: one.begin if one.shrank else one.end for one in lost}
        start = {partition: after_loss.get(partition, read.get(partition, 0)) for partition in begin}
    else:
        # Nobody knows any more how far the old topic reached.
        lost = tuple(Lost(partition, position, None) for partition, position in read.items())
        start = begin
    return Beginning({topic: {str(partition): position for partition, position in start.items()}}, after, lost)


def begin(home: Path, number: int, owner: dict[str, Any], beginning: Beginning) -> None:
    """Make the checkpoint directory `home/number`, whole or not at all."""
    new = home / f"{number}.new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    is_seeded = beginning.offset is not None
    document = {**owner, "generation": number, "after": beginning.after, "first": int(is_seeded), "definitions": []}
    (new / OWNER).write_text(json.dumps(document))
    if is_seeded:
        _seed(new, beginning.offset)
    new.rename(home / str(number))


def _seed(checkpoint: Path, offset: Any) -> None:
    """A batch 0 that is done, in Spark's format, so that batch 1 starts at `offset`."""
    settings_line = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})
    files = {
        "metadata": json.dumps({"id": str(uuid.uuid4())}),
        "offsets/0": f"v1\n{settings_line}\n{json.dumps(offset)}",
        "commits/0": 'v1\n{"nextBatchWatermarkMs":0}',
    }
    for name, text in files.items():
        (checkpoint / name).parent.mkdir(exist_ok=True)
        (checkpoint / name).write_text(text)
