"""Mirrors processed offsets into Kafka consumer groups, `sluice.<flow>`, so that Kafka's own tools show the lag.

Structured Streaming commits no offsets to Kafka. The groups have no members and control nothing: flows use their
checkpoints, and the next mirroring overwrites any manual change.
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

# A new group must find its coordinator first.
TIMEOUT_SECONDS = 5.0


def group(flow: str) -> str:
    return f"sluice.{flow}"


def mirror(tables: catalog.Catalog, timeout_seconds: float = TIMEOUT_SECONDS) -> dict[str, str | None]:
    """Mirrors the offsets of all flows that read Kafka and have committed a batch.

    Returns, by flow, None or why its offsets were not mirrored. timeout_seconds: the maximum wait for all of them.
    """
    offsets_by_flow: dict[str, dict[tuple[str, int], int]] = {}
    outcomes: dict[str, str | None] = {}
    for flow in tables.flows.values():
        try:
            flow_position = position.position_of(flow.flow)
        except SluiceError as error:
            outcomes[flow.flow] = str(error)
            continue
        if isinstance(flow.source, Kafka) and flow_position is not None and flow_position.offset:
            offsets_by_flow[flow.flow] = {
                (topic, partition): offset
                for topic in flow_position.offset
                for partition, offset in checkpoint.positions(flow_position.offset, topic).items()
            }
    return outcomes | (_commit(offsets_by_flow, timeout_seconds) if offsets_by_flow else {})


def _commit(offsets_by_flow: dict[str, dict[tuple[str, int], int]], timeout_seconds: float) -> dict[str, str | None]:
    """Commits the next offset of each partition, by flow.

    It sends all requests at once, so that a broker that does not answer costs one timeout.
    """
    # Garbage collection of the AdminClient would cancel its pending requests.
    admin = AdminClient({"bootstrap.servers": settings().kafka, "log_level": 0})
    futures: dict[str, Future[Any]] = {}
    for flow, offsets in offsets_by_flow.items():
        partitions = [TopicPartition(*place, offset) for place, offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group(flow), partitions)]
        [futures[flow]] = admin.alter_consumer_group_offsets(request, request_timeout=timeout_seconds).values()
    return {flow: _refusal(future) for flow, future in futures.items()}


def _refusal(future: Future[Any]) -> str | None:
    try:
        errors = [partition.error for partition in future.result().topic_partitions if partition.error]
    except KafkaException as error:
        errors = [error.args[0]]
    return f"the broker at {settings().kafka} took no offsets ({errors[0].str()}): see its log" if errors else None
