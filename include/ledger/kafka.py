"""What the broker says, asked without a JVM."""

import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]

from include.errors import Unreachable
from include.spec import Kafka

TIMEOUT_SECONDS = 10
# Kafka's own, which match no pattern.
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
EARLIEST, LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]


class NoSuchTopic(Unreachable):
    """Nobody has created the topic yet, or somebody has deleted it."""


@dataclass(frozen=True)
class Identity:
    """Which topic a name means: created anew it has another `topic_id`, on another Kafka another `cluster_id`."""

    cluster_id: str
    topic_id: str


@dataclass(frozen=True)
class Record:
    """timestamp: in seconds. size: of key, value and headers, uncompressed."""

    offset: int
    timestamp: float
    size: int


class Topics:
    """The topics of one Kafka over one kept connection. Every method asks the broker anew and may raise Unreachable.

    Keep it for the life of a process, and never across a fork: its threads do not come along.
    """

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def names(self, source: Kafka) -> list[str]:
        """The topics of a source: those it names, or those that match its pattern now."""
        if source.pattern is None:
            return sorted(source.names)
        try:
            known = self._admin.list_topics(timeout=TIMEOUT_SECONDS).topics
        except KafkaException as error:
            raise self._no_broker() from error
        return sorted(name for name in known if name not in INTERNAL and re.fullmatch(source.pattern, name))

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Which topic each name means, in one question to the broker; those that do not exist are left out."""
        names, found = list(topics), {}
        if names:
            asked = self._admin.describe_topics(TopicCollection(names), request_timeout=TIMEOUT_SECONDS)
            for name in names:
                with suppress(NoSuchTopic):
                    found[name] = _id(self._result(asked[name], name))
        return found

    def identity(self, topic: str) -> Identity:
        return Identity(self.cluster_id(), _id(self._describe(topic)))

    def cluster_id(self) -> str:
        asked = self._admin.describe_cluster(request_timeout=TIMEOUT_SECONDS)
        return str(self._result(asked, "its cluster").cluster_id)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """The first and the next offset of each partition."""
        partitions = [partition.id for partition in self._describe(topic).partitions]
        begins = self._list_offsets(topic, partitions, EARLIEST)
        ends = self._list_offsets(topic, partitions, LATEST)
        return {
            partition: (self._offset(begins[partition], topic), self._offset(ends[partition], topic))
            for partition in partitions
        }

    def configuration(self, topic: str) -> dict[str, str]:
        """What is in force for the topic, the broker's defaults included."""
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        asked = self._admin.describe_configs([resource], request_timeout=TIMEOUT_SECONDS)[resource]
        return {name: entry.value for name, entry in self._result(asked, topic).items()}

    def _describe(self, topic: str) -> Any:
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=TIMEOUT_SECONDS)
        return self._result(asked[topic], topic)

    def _list_offsets(self, topic: str, partitions: Iterable[int], spec: OffsetSpec) -> dict[int, Future[Any]]:
        wanted = {TopicPartition(topic, partition): spec for partition in partitions}
        asked = self._admin.list_offsets(wanted, request_timeout=TIMEOUT_SECONDS)
        return {asked_for.partition: future for asked_for, future in asked.items()}

    def _offset(self, future: Future[Any], topic: str) -> int:
        offset: int = self._result(future, topic).offset
        # librdkafka passes a timeout off as an answer with an offset below zero.
        if offset < 0:
            raise self._no_broker()
        return offset

    def _result(self, future: Future[Any], topic: str) -> Any:
        try:
            return future.result()
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise NoSuchTopic(
                    f"topic '{topic}' does not exist on {self.servers}: create it, or correct the table that reads it"
                ) from exception
            # The client's own errors, such as a timeout, have codes below zero.
            if error.code() < 0:
                raise self._no_broker() from exception
            raise Unreachable(
                f"the broker at {self.servers} says nothing about '{topic}' ({error.str()}): see its log"
            ) from exception

    def _no_broker(self) -> Unreachable:
        return Unreachable(
            f"SLUICE_KAFKA is {self.servers}, where no Kafka broker answers: start it (make up), or correct the setting"
        )


def _id(description: Any) -> str:
    """As Kafka's own tools write it."""
    return str(description.topic_id).replace("+", "-").replace("/", "_")


def check_topic(servers: str, topic: str) -> None:
    """Raises Unreachable where no broker answers or the topic does not exist."""
    identity(servers, topic)


def identity(servers: str, topic: str) -> Identity:
    """Which topic the name means now. Raises Unreachable."""
    return Topics(servers).identity(topic)


def offsets(servers: str, topic: str) -> dict[int, tuple[int, int]]:
    """The first and the next offset of each partition. Raises Unreachable."""
    return Topics(servers).offsets(topic)


def begin_offsets(servers: str, topic: str) -> dict[int, int]:
    """The first offset each partition still holds. Raises Unreachable."""
    return {partition: begin for partition, (begin, _) in offsets(servers, topic).items()}


def end_offsets(servers: str, topic: str) -> dict[int, int]:
    """The next offset of each partition. Raises Unreachable."""
    return {partition: end for partition, (_, end) in offsets(servers, topic).items()}


def records(
    servers: str, topic: str, spans: Mapping[int, tuple[int, int]], only_committed: bool = False
) -> dict[int, list[Record]]:
    """The records of each partition from its first offset on until one reaches the second; fewer where it ends before.

    only_committed: none of a transaction that was aborted.

    Offsets without a record, as compaction and transactions leave them, are stepped over. Raises Unreachable.
    """
    found: dict[int, list[Record]] = {partition: [] for partition in spans}
    awaited = {partition: until for partition, (_, until) in spans.items()}
    consumer = _consumer(servers, only_committed)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition, (start, _) in spans.items()])
        while awaited:
            message = consumer.poll(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise Unreachable(f"the broker at {servers} hands out no records of '{topic}': see its log")
            partition, error = message.partition(), message.error()
            if partition not in awaited or (error and error.code() != KafkaError._PARTITION_EOF):
                continue
            if not error:
                found[partition].append(_record(message))
            if error or found[partition][-1].offset >= awaited[partition]:
                del awaited[partition]
                consumer.pause([TopicPartition(topic, partition)])
    finally:
        consumer.close()
    return found


def _consumer(servers: str, only_committed: bool) -> Consumer:
    # It joins no group and commits nothing; the client wants a group's name all the same.
    return Consumer(
        {
            "bootstrap.servers": servers,
            "log_level": 0,
            "group.id": "sluice-ledger",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if only_committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            # So that the end of a partition is told at once, not after half a second.
            "fetch.wait.max.ms": 10,
            "fetch.message.max.bytes": 64 * 1024,
            "queued.min.messages": 100,
            # So that one full partition does not hold up the others for a second.
            "fetch.queue.backoff.ms": 1,
        }
    )


def _record(message: Message) -> Record:
    headers = sum(len(header[0]) + len(header[1] or b"") for header in message.headers() or [])
    size = len(message.key() or b"") + len(message.value() or b"") + headers
    return Record(message.offset() or 0, message.timestamp()[1] / 1000, size)
