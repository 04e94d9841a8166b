"""Mirrors processed offsets into Kafka consumer groups, so that Kafka's own tools show the lag.

Structured Streaming commits no offsets to Kafka. The groups have no members and control nothing: flows use their
checkpoints, and the next mirroring overwrites any manual change.

The group of a flow is `sluice.<flow>`. It belongs to the platform that its offsets note. Another platform at the same
broker takes `sluice.<flow>.<platform>`.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from include import catalog
from include.checkpoints import checkpoint_files
from include.control import platform
from include.control.store import database
from include.errors import SluiceError
from include.kafka import cluster
from include.kafka.broker import Topics
from include.kafka.cluster import AccessRefused
from include.settings import settings

# The next offset by topic and partition.
Offsets = dict[tuple[str, int], int]
# A new group must find its coordinator first.
TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True)
class Mirrored:
    """group: the consumer group of a flow. refusal: why its offsets were not mirrored, if they were not."""

    group: str
    refusal: str | None = None


def mirror(tables: catalog.Catalog, timeout_seconds: float = TIMEOUT_SECONDS) -> dict[str, Mirrored]:
    """Mirrors the offsets of all flows that read Kafka and have committed a batch. Returns what became of each.

    timeout_seconds: the maximum wait for all of them. Raises Unreachable if the control database does not answer.
    """
    offsets_by_flow: dict[str, Offsets] = {}
    clusters: dict[str | None, list[str]] = {}
    outcomes: dict[str, Mirrored] = {}
    for flow in tables.flows.values():
        try:
            flow_position = checkpoint_files.position_of(flow.flow)
        except SluiceError as error:
            outcomes[flow.flow] = Mirrored(_group(flow.flow), str(error))
            continue
        if flow.source.reads_topics and flow_position is not None and flow_position.offset:
            clusters.setdefault(flow.source.cluster, []).append(flow.flow)
            offsets_by_flow[flow.flow] = {
                (topic, partition): offset
                for topic in flow_position.offset
                for partition, offset in checkpoint_files.positions(flow_position.offset, topic).items()
            }
    topics_of: dict[str, Topics] = {}
    for name, flows in clusters.items():
        try:
            topics_of |= dict.fromkeys(flows, Topics(cluster.named(name), timeout_seconds))
        except AccessRefused as error:
            outcomes |= {flow: Mirrored(_group(flow), str(error)) for flow in flows}
    return outcomes | _commit(topics_of, offsets_by_flow)


def _group(flow: str) -> str:
    return f"sluice.{flow}"


def _commit(topics_of: dict[str, Topics], offsets_by_flow: dict[str, Offsets]) -> dict[str, Mirrored]:
    """Commits the next offset of each partition of these flows.

    It sends all requests of a kind at once. A group that cannot be read is not written, so brokers that do not answer
    cost one timeout.
    """
    if not topics_of:
        return {}
    owner = platform.identity(database.connect(settings().control_url))
    with ThreadPoolExecutor(len(topics_of)) as pool:
        committed = {
            flow: pool.submit(topics.committed, _group(flow), offsets_by_flow[flow])
            for flow, topics in topics_of.items()
        }
    groups = {flow: _own_group(flow, answer, owner) for flow, answer in committed.items()}
    answers = {
        flow: topics.commit(groups[flow], offsets_by_flow[flow], owner)
        for flow, topics in topics_of.items()
        if committed[flow].exception() is None
    }
    return {
        flow: Mirrored(groups[flow], _refusal(topics, answers.get(flow, committed[flow])))
        for flow, topics in topics_of.items()
    }


def _own_group(flow: str, committed: Future[list[TopicPartition]], owner: str) -> str:
    """Returns the group of a flow of this platform. A group without a note is of an earlier release, or of nobody."""
    if committed.exception() is not None:
        return _group(flow)
    notes = {partition.metadata for partition in committed.result() if partition.metadata}
    return f"{_group(flow)}.{owner}" if notes - {owner} else _group(flow)


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
