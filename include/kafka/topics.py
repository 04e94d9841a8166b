"""Tells whether a flow's topics are the same as before, whether topics were added, and whether some were replaced."""

from typing import Any

from include.checkpoints.checkpoint_files import positions
from include.errors import FlowBroken
from include.kafka import broker, cluster, retention
from include.kafka.broker import Topics
from include.kafka.cluster import Cluster
from include.kafka.retention import LostOffsets
from include.spec import Flow, Kafka


def source_identity(kafka: Kafka) -> dict[str, Any]:
    """Returns a source's cluster id and topic ids, as commits store them. Raises Unreachable and AccessRefused."""
    topics = Topics(cluster.of(kafka))
    names = topics.names(kafka)
    ids = topics.ids(names)
    for name in names:
        if name not in ids:
            # Raises NoSuchTopic, unless the topic was created in the meantime.
            ids[name] = topics.identity(name).topic_id
    # Without a name for the default cluster, as older releases have stored it.
    named = {"cluster": kafka.cluster} if kafka.cluster else {}
    return {"cluster_id": topics.cluster_id(), "topics": ids, **named}


def is_continuation(previous: dict[str, Any], current: dict[str, Any]) -> bool:
    """Returns whether every topic that was read still exists under the same id. Added topics do not matter, and
    neither does another name of the same cluster.
    """
    return bool(previous.get("topics", {"": ""}).items() <= current["topics"].items())


def require_same(flow: Flow, previous: dict[str, Any], current: dict[str, Any]) -> None:
    """Raises FlowBroken where a topic was deleted or replaced. Not for a table file that names another cluster.

    Topics that the declaration no longer names are not checked here.
    """
    if names_another_cluster(previous, current):
        return
    for topic, topic_id in previous.get("topics", {}).items():
        if topic in current["topics"] and current["topics"][topic] != topic_id:
            raise _replaced(flow, topic, f"since it was last read ({topic_id} then, {current['topics'][topic]} now)")
        if topic not in current["topics"] and flow.source_as(Kafka).pattern is not None:
            raise FlowBroken(
                f"{flow.flow}: topic '{topic}', which it has read, is no longer among its {flow.source}: where it was "
                f"deleted, action accept data loss goes on without it; else restore the pattern",
                "KAFKA_DATA_LOSS",
            )


def names_another_cluster(previous: dict[str, Any], current: dict[str, Any]) -> bool:
    """Returns whether the table file names another cluster than before, and not only the same one differently."""
    is_same_name = previous.get("cluster") == current.get("cluster")
    return not is_same_name and previous.get("cluster_id") != current["cluster_id"]


def require_unreplaced(flow: Flow, previous: dict[str, Any], current: dict[str, Any]) -> None:
    """Raises FlowBroken for a topic that was replaced by another one of the same name.

    Spark continues in a recreated topic if it has more records than the old one.
    """
    for topic, topic_id in current["topics"].items():
        if previous["topics"].get(topic, topic_id) != topic_id:
            raise _replaced(flow, topic, "while it was read")


def added(previous: dict[str, Any], current: dict[str, Any]) -> dict[str, str]:
    """Returns the topics that were not read before, with their ids."""
    return {topic: topic_id for topic, topic_id in current["topics"].items() if topic not in previous["topics"]}


def _replaced(flow: Flow, topic: str, when: str) -> FlowBroken:
    return FlowBroken(
        f"{flow.flow}: topic '{topic}' was deleted and recreated {when}: action accept data loss begins at the "
        f"start of the new one",
        "TOPIC_REPLACED",
    )


def require_unread_available(flow: Flow, offset: dict[str, Any] | None, current: dict[str, Any]) -> None:
    """Raises FlowBroken where Kafka no longer holds unread records after `offset`, and Unreachable."""
    kafka_cluster = cluster.of(flow.source_as(Kafka))
    lost = [
        range_
        for topic in current["topics"]
        for range_ in retention.lost_offsets(kafka_cluster, topic, positions(offset, topic))
    ]
    if lost:
        gone = "; ".join(
            f"topic '{range_.topic}' partition {range_.partition} from offset {range_.begin} to before {range_.end}"
            for range_ in lost
        )
        raise FlowBroken(
            f"{flow.flow}: Kafka no longer holds what is unread ({gone}): action accept data loss records that and "
            f"goes on after it",
            "KAFKA_DATA_LOSS",
        )


def after_loss(
    source: Kafka, offset: dict[str, Any], previous: dict[str, Any], current: dict[str, Any]
) -> tuple[dict[str, dict[str, int]], tuple[LostOffsets, ...]]:
    """Returns the offset at which Kafka's remaining records continue, in Spark's format, and the ranges that it skips.

    previous: the source identity up to `offset`. Raises Unreachable.
    """
    kafka_cluster = cluster.of(source)
    starts: dict[str, dict[str, int]] = {}
    lost: list[LostOffsets] = []
    for topic in sorted({*offset, *current["topics"]}):
        read, topic_id = positions(offset, topic), current["topics"].get(topic)
        if topic_id is not None and previous.get("topics", {}).get(topic, topic_id) == topic_id:
            start, lost_in_topic = _after_lost_records(kafka_cluster, topic, read)
        else:
            # The end of the old topic is unknown.
            start = broker.begin_offsets(kafka_cluster, topic) if topic_id else {}
            lost_in_topic = [LostOffsets(topic, partition, position, None) for partition, position in read.items()]
        lost += lost_in_topic
        if start:
            starts[topic] = {str(partition): position for partition, position in start.items()}
    return starts, tuple(lost)


def _after_lost_records(
    kafka_cluster: Cluster, topic: str, read: dict[int, int]
) -> tuple[dict[int, int], list[LostOffsets]]:
    begin = broker.begin_offsets(kafka_cluster, topic)
    lost = retention.lost_offsets(kafka_cluster, topic, {partition: read.get(partition, 0) for partition in begin})
    first_available = {
        range_.partition: range_.begin if range_.shrank or range_.end is None else range_.end for range_ in lost
    }
    return {partition: first_available.get(partition, read.get(partition, 0)) for partition in begin}, lost
