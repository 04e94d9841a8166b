"""Mirrors what flows have read into Kafka consumer groups, `sluice.<flow>`, so that Kafka's own tools show their lag.

Structured Streaming commits no offsets to Kafka. A mirrored group has no members and steers nothing: a flow goes by its
checkpoint alone, and the next mirroring puts right whatever somebody has set there.
"""

from concurrent.futures import Future
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from include import catalog
from include.errors import SluiceError
from include.readers import checkpoint, position
from include.settings import settings
from include.spec import Kafka

# A group that is new has to find its coordinator first.
TIMEOUT_SECONDS = 5.0


def group(flow: str) -> str:
    return f"sluice.{flow}"


def mirror(tables: catalog.Catalog, timeout_seconds: float = TIMEOUT_SECONDS) -> dict[str, str | None]:
    """By flow that reads Kafka and has committed a batch: None, or why its offsets were not mirrored.

    timeout_seconds: for which a broker that does not answer may keep all of them waiting.
    """
    read: dict[str, dict[tuple[str, int], int]] = {}
    told: dict[str, str | None] = {}
    for flow in tables.flows.values():
        try:
            at = position.of(flow.flow)
        except SluiceError as error:
            told[flow.flow] = str(error)
            continue
        if isinstance(flow.source, Kafka) and at is not None and at.offset:
            read[flow.flow] = {
                (topic, partition): offset
                for topic in at.offset
                for partition, offset in checkpoint.positions(at.offset, topic).items()
            }
    return told | (_commit(read, timeout_seconds) if read else {})


def _commit(read: dict[str, dict[tuple[str, int], int]], timeout_seconds: float) -> dict[str, str | None]:
    """read: by flow, the next offset of each partition. All are asked for at once, so a hanging broker costs one
    timeout.
    """
    # Held to the end: an AdminClient that is collected takes its pending requests with it.
    admin = AdminClient({"bootstrap.servers": settings().kafka, "log_level": 0})
    asked: dict[str, Future[Any]] = {}
    for flow, offsets in read.items():
        wanted = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group(flow), wanted)]
        [asked[flow]] = admin.alter_consumer_group_offsets(request, request_timeout=timeout_seconds).values()
    return {flow: _refusal(future) for flow, future in asked.items()}


def _refusal(future: Future[Any]) -> str | None:
    try:
        errors = [one.error for one in future.result().topic_partitions if one.error]
    except KafkaException as error:
        errors = [error.args[0]]
    return f"the broker at {settings().kafka} took no offsets ({errors[0].str()}): see its log" if errors else None
