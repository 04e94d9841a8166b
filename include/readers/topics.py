"""The topics a flow reads: the same as before, more of them, or others under their names."""

from typing import Any

from include.errors import Broken
from include.readers import kafka_broker, kafka_retention
from include.readers.checkpoint import positions
from include.readers.kafka_broker import Topics
from include.readers.kafka_retention import Lost
from include.settings import settings
from include.spec import Kafka, Table


def source(of: Kafka) -> dict[str, Any]:
    """Which topics that is now. Raises Unreachable, also where it names a topic that does not exist."""
    topics = Topics(settings().kafka)
    names = topics.names(of)
    ids = topics.ids(names)
    for name in names:
        if name not in ids:
            # It says that the topic does not exist, unless it was made this very moment.
            ids[name] = topics.identity(name).topic_id
    return {"cluster_id": topics.cluster_id(), "topics": ids}


def goes_on(was: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether every topic that was read is still there, the same one. New ones may have come."""
    return bool(was.get("topics", {"": ""}).items() <= now["topics"].items())


def require_same(flow: Table, was: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises Broken where a topic was deleted, with or without another one in its place.

    What the declaration itself no longer names is left to others to judge.
    """
    for topic, topic_id in was.get("topics", {}).items():
        if topic in now["topics"] and now["topics"][topic] != topic_id:
            raise _replaced(flow, topic, f"since it was last read ({topic_id} then, {now['topics'][topic]} now)")
        if topic not in now["topics"] and isinstance(flow.source, Kafka) and flow.source.pattern is not None:
            raise Broken(
                f"{flow.flow}: topic '{topic}', which it has read, is no longer among its {flow.source}: where it was "
                f"deleted, action accept data loss goes on without it; else put the pattern back",
                "KAFKA_DATA_LOSS",
            )


def require_unreplaced(flow: Table, was: dict[str, Any], now: dict[str, Any]) -> None:
    """Raises Broken for a topic that is another than it was.

    Spark reads on in a topic that was deleted and created anew, where that holds more records than the old one.
    """
    for topic, topic_id in now["topics"].items():
        if was["topics"].get(topic, topic_id) != topic_id:
            raise _replaced(flow, topic, "while it was read")


def added(was: dict[str, Any], now: dict[str, Any]) -> dict[str, str]:
    """The topics that were not read before."""
    return {topic: topic_id for topic, topic_id in now["topics"].items() if topic not in was["topics"]}


def _replaced(flow: Table, topic: str, when: str) -> Broken:
    return Broken(
        f"{flow.flow}: topic '{topic}' was deleted and created anew {when}: action accept data loss begins at the "
        f"start of the new one",
        "TOPIC_REPLACED",
    )


def require_unread(flow: Table, offset: dict[str, Any] | None, now: dict[str, Any]) -> None:
    """Raises Broken where Kafka no longer holds what comes after `offset`, and Unreachable."""
    lost = [
        one
        for topic in now["topics"]
        for one in kafka_retention.lost(settings().kafka, topic, positions(offset, topic))
    ]
    if lost:
        gone = "; ".join(
            f"topic '{one.topic}' partition {one.partition} from offset {one.begin} to before {one.end}" for one in lost
        )
        raise Broken(
            f"{flow.flow}: Kafka no longer holds what is unread ({gone}): action accept data loss records that and "
            f"goes on after it",
            "KAFKA_DATA_LOSS",
        )


def after_loss(
    offset: dict[str, Any], was: dict[str, Any], now: dict[str, Any]
) -> tuple[dict[str, dict[str, int]], tuple[Lost, ...]]:
    """Where to go on after `offset` by what Kafka holds, in Spark's form, and what that leaves out.

    was: what was read up to there. Raises Unreachable.
    """
    starts: dict[str, dict[str, int]] = {}
    lost: list[Lost] = []
    for topic in sorted({*offset, *now["topics"]}):
        read, topic_id = positions(offset, topic), now["topics"].get(topic)
        if topic_id is not None and was.get("topics", {}).get(topic, topic_id) == topic_id:
            start, gone = _after_what_is_gone(topic, read)
        else:
            # Nobody knows any more how far the old topic reached.
            start = kafka_broker.begin_offsets(settings().kafka, topic) if topic_id else {}
            gone = [Lost(topic, partition, position, None) for partition, position in read.items()]
        lost += gone
        if start:
            starts[topic] = {str(partition): position for partition, position in start.items()}
    return starts, tuple(lost)


def _after_what_is_gone(topic: str, read: dict[int, int]) -> tuple[dict[int, int], list[Lost]]:
    begin = kafka_broker.begin_offsets(settings().kafka, topic)
    gone = kafka_retention.lost(settings().kafka, topic, {partition: read.get(partition, 0) for partition in begin})
    after = {one.partition: one.begin if one.shrank or one.end is None else one.end for one in gone}
    return {partition: after.get(partition, read.get(partition, 0)) for partition in begin}, gone
