"""Mirrors processed offsets into Kafka consumer groups, `sluice.<flow>`, so that Kafka's own tools show the lag.

Structured Streaming commits no offsets to Kafka. The groups have no members and control nothing: flows use their
checkpoints, and the next mirroring overwrites any manual change.
"""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import KafkaException

from include import catalog
from include.errors import SluiceError
from include.readers import checkpoint, position
from include.readers.kafka import cluster
from include.readers.kafka.cluster import AccessRefused
from include.readers.kafka_broker import Topics
from include.spec import Kafka

# The next offset by topic and partition.
Offsets = dict[tuple[str, int], int]
# A new group must find its coordinator first.
TIMEOUT_SECONDS = 5.0


def group(flow: str) -> str:
    return f"sluice.{flow}"


def mirror(tables: catalog.Catalog, timeout_seconds: float = TIMEOUT_SECONDS) -> dict[str, str | None]:
    """Mirrors the offsets of all flows that read Kafka and have committed a batch.

    Returns, by flow, None or why its offsets were not mirrored. timeout_seconds: the maximum wait for all of them.
    """
    offsets_by_flow: dict[str, Offsets] = {}
    clusters: dict[str | None, list[str]] = {}
    outcomes: dict[str, str | None] = {}
    for flow in tables.flows.values():
        try:
            flow_position = position.position_of(flow.flow)
        except SluiceError as error:
            outcomes[flow.flow] = str(error)
            continue
        if isinstance(flow.source, Kafka) and flow_position is not None and flow_position.offset:
            clusters.setdefault(flow.source.cluster, []).append(flow.flow)
            offsets_by_flow[flow.flow] = {
                (topic, partition): offset
                for topic in flow_position.offset
                for partition, offset in checkpoint.positions(flow_position.offset, topic).items()
            }
    commits = [
        _commit(name, {flow: offsets_by_flow[flow] for flow in flows}, timeout_seconds)
        for name, flows in clusters.items()
    ]
    return outcomes | {flow: refusal() for refusals in commits for flow, refusal in refusals.items()}


def _commit(
    name: str | None, offsets_by_flow: dict[str, Offsets], timeout_seconds: float
) -> dict[str, Callable[[], str | None]]:
    """Commits the next offset of each partition in a cluster. Returns, by flow, what waits for why it was refused.

    It sends all requests at once, so that brokers that do not answer cost one timeout.
    """
    try:
        topics = Topics(cluster.named(name), timeout_seconds)
    except AccessRefused as error:
        sentence = str(error)
        return {flow: lambda: sentence for flow in offsets_by_flow}
    return {
        flow: partial(_refusal, topics, topics.commit(group(flow), offsets))
        for flow, offsets in offsets_by_flow.items()
    }


def _refusal(topics: Topics, future: Future[Any]) -> str | None:
    try:
        errors = [partition.error for partition in future.result().topic_partitions if partition.error]
    except KafkaException as error:
        errors = [error.args[0]]
    if not errors:
        return None
    answer = topics.no_answer()
    if isinstance(answer, AccessRefused):
        return str(answer)
    return f"the broker at {topics.cluster} took no offsets ({errors[0].str()}): see its log"
