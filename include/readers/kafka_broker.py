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
# What the broker says where no record is as late as a moment that was asked for.
NOTHING_SO_LATE = -1
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


@dataclass(frozen=True)
class Span:
    """A partition's first offset, its next one, and what that was at an earlier moment, by the time of its records."""

    begin: int
    end_then: int
    end: int


class Topics:
    """The topics of one Kafka over one kept connection. Every method asks the broker anew and may raise Unreachable.

    Keep it for the life of a process, and never across a fork: its threads do not come along.
    """

    def __init__(self, servers: str, timeout_seconds: float | None = None) -> None:
        self.servers, self.timeout_seconds = servers, timeout_seconds or TIMEOUT_SECONDS
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})

    def names(self, source: Kafka) -> list[str]:
        """The topics of a source: those it names, or those that match its pattern now."""
        return sorted(source.names) if source.pattern is None else matching(source, self.partitions())

    def partitions(self) -> dict[str, list[int]]:
        """Of every topic there is, in one question to the broker."""
        try:
            found = self._admin.list_topics(timeout=self.timeout_seconds).topics
        except KafkaException as error:
            raise self.no_broker() from error
        return {name: sorted(topic.partitions) for name, topic in found.items() if name not in INTERNAL}

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Which topic each name means, in one question to the broker; those that do not exist are left out."""
        names, found = list(topics), {}
        if names:
            asked = self._admin.describe_topics(TopicCollection(names), request_timeout=self.timeout_seconds)
            for name in names:
                with suppress(NoSuchTopic):
                    found[name] = _id(self._result(asked[name], name))
        return found

    def identity(self, topic: str) -> Identity:
        return Identity(self.cluster_id(), _id(self._describe(topic)))

    def cluster_id(self) -> str:
        asked = self._admin.describe_cluster(request_timeout=self.timeout_seconds)
        return str(self._result(asked, "its cluster").cluster_id)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """The first and the next offset of each partition."""
        partitions = [(topic, partition.id) for partition in self._describe(topic).partitions]
        asked = [self._list_offsets(partitions, spec) for spec in (EARLIEST, LATEST)]
        begins, ends = (self._offsets(one) for one in asked)
        return {partition: (begins[topic, partition], ends[topic, partition]) for _, partition in partitions}

    def spans(self, partitions: Iterable[tuple[str, int]], since: float) -> dict[tuple[str, int], Span]:
        """Of partitions of any topics at once: what they hold, and what they held at a moment, seconds since 1970."""
        wanted = list(partitions)
        moment = OffsetSpec.for_timestamp(int(since * 1000))
        asked = [self._list_offsets(wanted, spec) for spec in (EARLIEST, LATEST, moment)]
        begins, ends, later = (self._offsets(one) for one in asked)
        # Below zero: no record is as late as that.
        return {one: Span(begins[one], later[one] if later[one] >= 0 else ends[one], ends[one]) for one in wanted}

    def configuration(self, topic: str) -> dict[str, str]:
        """What is in force for the topic, the broker's defaults included."""
        return self.configurations([topic])[topic]

    def configurations(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """The same of several topics, in one question to the broker."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        asked = self._admin.describe_configs(resources, request_timeout=self.timeout_seconds) if resources else {}
        return {
            one.name: {name: entry.value for name, entry in self._result(asked[one], one.name).items()}
            for one in resources
        }

    def _describe(self, topic: str) -> Any:
        asked = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self.timeout_seconds)
        return self._result(asked[topic], topic)

    def _list_offsets(self, partitions: list[tuple[str, int]], spec: OffsetSpec) -> dict[TopicPartition, Future[Any]]:
        wanted = {TopicPartition(*one): spec for one in partitions}
        return self._admin.list_offsets(wanted, request_timeout=self.timeout_seconds) if wanted else {}

    def _offsets(self, asked: dict[TopicPartition, Future[Any]]) -> dict[tuple[str, int], int]:
        found = {(one.topic, one.partition): self._result(future, one.topic).offset for one, future in asked.items()}
        # librdkafka passes a timeout off as an answer with an offset below zero.
        if any(offset < NOTHING_SO_LATE for offset in found.values()):
            raise self.no_broker()
        return found

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
                raise self.no_broker() from exception
            raise Unreachable(
                f"the broker at {self.servers} says nothing about '{topic}' ({error.str()}): see its log"
            ) from exception

    def no_broker(self) -> Unreachable:
        return Unreachable(
            f"SLUICE_KAFKA is {self.servers}, where no Kafka broker answers: start it (make up), or correct the setting"
        )


def matching(source: Kafka, known: Iterable[str]) -> list[str]:
    """The topics of a source: those it names, or those of the known ones that match its pattern."""
    if source.pattern is None:
        return sorted(source.names)
    return sorted(name for name in known if re.fullmatch(source.pattern, name))


def _id(description: Any) -> str:
    """As Kafka's own tools write it."""
    return str(description.topic_id).replace("+", "-").replace("/", "_")


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
