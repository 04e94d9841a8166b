"""Asks the Kafka broker about topics, offsets and records, without a JVM."""

import base64
import re
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec  # type: ignore[attr-defined]

from include.checkpoints.offset_ranges import OffsetRange
from include.errors import FlowBroken, Unreachable
from include.kafka import cluster
from include.kafka.cluster import AccessRefused, Cluster, ConnectionErrors
from include.spec import Kafka

TIMEOUT_SECONDS = 10
# Kafka's internal topics, which match no pattern.
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
# The broker's answer where no record is as late as the timestamp.
NO_RECORD_SO_LATE = -1
NOT_PERMITTED = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
# The client returns a result and sets an exception. Of Python's calls only those from C look for that.
_named_headers = methodcaller("headers")
EARLIEST, LATEST = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]


class NoSuchTopic(Unreachable):
    """The topic does not exist: it is not created yet, or it was deleted."""


@dataclass(frozen=True)
class TopicIdentity:
    """The topic behind a name. A recreated topic has another `topic_id`, another cluster another `cluster_id`."""

    cluster_id: str
    topic_id: str


@dataclass(frozen=True)
class PartitionOffsets:
    """A partition's first and next offset, and its next offset at an earlier time, by the records' timestamps."""

    begin: int
    end_then: int
    end: int


class Topics:
    """The topics of one Kafka cluster, over one connection. Every method asks the broker and may raise Unreachable, and
    AccessRefused where the broker refuses the connection.

    Keep an instance for the lifetime of a process, and never across a fork: its threads do not survive one.
    """

    def __init__(self, cluster: Cluster, timeout_seconds: float | None = None) -> None:
        self.cluster, self.timeout_seconds = cluster, timeout_seconds or TIMEOUT_SECONDS
        self._errors = ConnectionErrors(cluster)
        self._admin = cluster.client(AdminClient, {"error_cb": self._errors})

    def names(self, source: Kafka) -> list[str]:
        """Returns the topics of a source: those it names, or those that match its pattern now."""
        return sorted(source.names) if source.pattern is None else matching(source, self.partitions())

    def partitions(self) -> dict[str, list[int]]:
        """Returns the partitions of every topic, with one request."""
        try:
            topics = self._admin.list_topics(timeout=self.timeout_seconds).topics
        except KafkaException as error:
            raise self.no_answer() from error
        return {name: sorted(topic.partitions) for name, topic in topics.items() if name not in INTERNAL}

    def ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Returns the id of each topic that exists, with one request."""
        names, topic_ids = list(topics), {}
        if names:
            futures = self._admin.describe_topics(TopicCollection(names), request_timeout=self.timeout_seconds)
            for name in names:
                with suppress(NoSuchTopic):
                    topic_ids[name] = _id(self._result(futures[name], name))
        return topic_ids

    def identity(self, topic: str) -> TopicIdentity:
        return TopicIdentity(self.cluster_id(), _id(self._describe(topic)))

    def cluster_id(self) -> str:
        future = self._admin.describe_cluster(request_timeout=self.timeout_seconds)
        return str(self._result(future, "its cluster").cluster_id)

    def offsets(self, topic: str) -> dict[int, tuple[int, int]]:
        """Returns the first and the next offset of each partition."""
        partitions = [(topic, partition.id) for partition in self._describe(topic).partitions]
        listings = [self._list_offsets(partitions, spec) for spec in (EARLIEST, LATEST)]
        begins, ends = (self._offsets(listing) for listing in listings)
        return {partition: (begins[topic, partition], ends[topic, partition]) for _, partition in partitions}

    def spans(self, partitions: Iterable[tuple[str, int]], since: float) -> dict[tuple[str, int], PartitionOffsets]:
        """Returns the spans of partitions of any topics. since: the earlier time, in seconds since 1970."""
        listed = list(partitions)
        at_timestamp = OffsetSpec.for_timestamp(int(since * 1000))
        listings = [self._list_offsets(listed, spec) for spec in (EARLIEST, LATEST, at_timestamp)]
        begins, ends, earlier = (self._offsets(listing) for listing in listings)
        # A negative offset means that no record is as late.
        return {
            key: PartitionOffsets(begins[key], earlier[key] if earlier[key] >= 0 else ends[key], ends[key])
            for key in listed
        }

    def configuration(self, topic: str) -> dict[str, str]:
        """Returns the topic's effective configuration, broker defaults included."""
        return self.configurations([topic])[topic]

    def configurations(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """Returns the effective configuration of several topics, with one request."""
        resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
        futures = self._admin.describe_configs(resources, request_timeout=self.timeout_seconds) if resources else {}
        return {
            resource.name: {name: entry.value for name, entry in self._result(futures[resource], resource.name).items()}
            for resource in resources
        }

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int], note: str) -> Future[Any]:
        """Commits the next offset of partitions, each with a note, for a consumer group without members."""
        partitions = [TopicPartition(*key, offset, note) for key, offset in offsets.items()]
        request = [ConsumerGroupTopicPartitions(group, partitions)]
        [future] = self._admin.alter_consumer_group_offsets(request, request_timeout=self.timeout_seconds).values()
        return future

    def committed(self, group: str, partitions: Iterable[tuple[str, int]]) -> list[TopicPartition]:
        """Returns the committed offsets of a consumer group, with their notes. Raises KafkaException.

        A consumer asks, which joins no group. While the group has no coordinator, the same question of an AdminClient
        ends the process (https://github.com/confluentinc/librdkafka/issues/5040).
        """
        consumer = self.cluster.client(Consumer, {"group.id": group, "error_cb": self._errors})
        try:
            return consumer.committed([TopicPartition(*key) for key in partitions], self.timeout_seconds)
        finally:
            consumer.close()

    def _describe(self, topic: str) -> Any:
        futures = self._admin.describe_topics(TopicCollection([topic]), request_timeout=self.timeout_seconds)
        return self._result(futures[topic], topic)

    def _list_offsets(self, partitions: list[tuple[str, int]], spec: OffsetSpec) -> dict[TopicPartition, Future[Any]]:
        specs = {TopicPartition(*partition): spec for partition in partitions}
        # A flow reads up to the first open transaction, and what lies behind that is not unread.
        options = {"isolation_level": IsolationLevel.READ_COMMITTED, "request_timeout": self.timeout_seconds}
        return self._admin.list_offsets(specs, **options) if specs else {}

    def _offsets(self, futures: dict[TopicPartition, Future[Any]]) -> dict[tuple[str, int], int]:
        offsets = {
            (partition.topic, partition.partition): self._result(future, partition.topic).offset
            for partition, future in futures.items()
        }
        # librdkafka reports a timeout as a negative offset.
        if any(offset < NO_RECORD_SO_LATE for offset in offsets.values()):
            raise self.no_answer()
        return offsets

    def _result(self, future: Future[Any], topic: str) -> Any:
        try:
            return future.result()
        except KafkaException as exception:
            error = exception.args[0]
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise NoSuchTopic(
                    f"topic '{topic}' does not exist on {self.cluster}: create it, or correct the table that reads it"
                ) from exception
            if error.code() in NOT_PERMITTED:
                raise AccessRefused(
                    f"{self.cluster.setting}, whose user has no right to '{topic}' ({error.str()}): grant Describe, "
                    f"Read and DescribeConfigs"
                ) from exception
            # Errors of the client, such as a timeout, have negative codes.
            if error.code() < 0:
                raise self.no_answer() from exception
            raise Unreachable(
                f"the broker at {self.cluster} says nothing about '{topic}' ({error.str()}): see its log"
            ) from exception

    def no_answer(self) -> Unreachable | FlowBroken:
        """Returns why a request got no answer."""
        # Reports the errors since the last call.
        self._admin.poll(0)
        if self._errors.refusal:
            return self._errors.refusal
        if self.cluster.file:
            return Unreachable(
                f"{self.cluster.setting}, and no Kafka broker answers at {self.cluster.servers} "
                f"({self._errors.reason or 'timed out'}): start it, or correct bootstrap.servers"
            )
        return Unreachable(
            f"{self.cluster.setting}, where no Kafka broker answers: start it (make up), or correct the setting"
        )


def matching(source: Kafka, existing: Iterable[str]) -> list[str]:
    """Returns the topics of a source: those it names, or those of the existing topics that match its pattern."""
    if source.pattern is None:
        return sorted(source.names)
    return sorted(name for name in existing if re.fullmatch(source.pattern, name))


def _id(description: Any) -> str:
    """Returns the topic id in the notation of Kafka's command-line tools."""
    return str(description.topic_id).replace("+", "-").replace("/", "_")


def identity(cluster: Cluster, topic: str) -> TopicIdentity:
    """Returns which topic the name stands for now. Raises Unreachable."""
    return Topics(cluster).identity(topic)


def offsets(cluster: Cluster, topic: str) -> dict[int, tuple[int, int]]:
    """Returns the first and the next offset of each partition. Raises Unreachable."""
    return Topics(cluster).offsets(topic)


def begin_offsets(cluster: Cluster, topic: str) -> dict[int, int]:
    """Returns the first offset that each partition still holds. Raises Unreachable."""
    return {partition: begin for partition, (begin, _) in offsets(cluster, topic).items()}


@dataclass(frozen=True)
class Record:
    """A record's position. timestamp: seconds since 1970. size: bytes of key, value and headers, uncompressed.

    Headers do not count if a name in them is no UTF-8.
    """

    offset: int
    timestamp: float
    size: int


def read(
    cluster: Cluster, topic: str, spans: Mapping[int, tuple[int, int]], only_committed: bool = False
) -> dict[int, list[Record]]:
    """Returns the records of each partition, from its first offset until a record reaches the second one.

    Offsets without a record are skipped. only_committed: leaves out aborted transactions. Raises Unreachable.
    """
    records_read: dict[int, list[Record]] = {partition: [] for partition in spans}
    last_offsets = {partition: until for partition, (_, until) in spans.items()}
    errors = ConnectionErrors(cluster)
    consumer = _consumer(cluster, only_committed, errors)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    try:
        consumer.assign([TopicPartition(topic, partition, start) for partition, (start, _) in spans.items()])
        while last_offsets:
            message = consumer.poll(max(0.0, deadline - time.monotonic()))
            if message is None:
                raise errors.refusal or Unreachable(
                    f"the broker at {cluster} hands out no records of '{topic}': see its log"
                )
            partition, error = message.partition(), message.error()
            if partition not in last_offsets or (error and error.code() != KafkaError._PARTITION_EOF):
                continue
            if not error:
                records_read[partition].append(_record(message))
            if error or records_read[partition][-1].offset >= last_offsets[partition]:
                del last_offsets[partition]
                consumer.pause([TopicPartition(topic, partition)])
    finally:
        consumer.close()
    return records_read


def _consumer(cluster: Cluster, only_committed: bool, errors: ConnectionErrors) -> Consumer:
    # The client requires a group id, although this consumer joins no group and commits nothing.
    return cluster.client(
        Consumer,
        {
            "error_cb": errors,
            "group.id": "sluice-ledger",
            "enable.auto.commit": False,
            "isolation.level": "read_committed" if only_committed else "read_uncommitted",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            # Reports the end of a partition at once instead of after 500 ms.
            "fetch.wait.max.ms": 10,
            "fetch.message.max.bytes": 64 * 1024,
            "queued.min.messages": 100,
            # Keeps one full partition from delaying the others by a second.
            "fetch.queue.backoff.ms": 1,
        },
    )


def headers(message: Message) -> list[tuple[str, Any]] | None:
    """Returns the headers of a record; None if a name is no UTF-8, which the client does not hand out.

    The client cuts a name off at its first NUL. It is to be asked once for each record: afterwards it hands out a list
    with NULL pointers.
    """
    try:
        return _named_headers(message) or []
    except (SystemError, UnicodeDecodeError):
        return None


def _record(message: Message) -> Record:
    in_headers = sum(len(name.encode()) + len(value or b"") for name, value in headers(message) or [])
    size = len(message.key() or b"") + len(message.value() or b"") + in_headers
    return Record(message.offset() or 0, message.timestamp()[1] / 1000, size)


def read_raw(source: Kafka, ranges: Iterable[OffsetRange]) -> list[dict[str, Any]]:
    """Returns the first record of each range, as JSON values: bytes in base64, its time in milliseconds since 1970.

    Where the broker does not deliver it, the place alone is known. `headers` is None if a name in them is no UTF-8.
    """
    consumer = cluster.of(source).client(
        Consumer,
        {"group.id": "sluice-ledger", "enable.auto.commit": False, "auto.offset.reset": "error", "check.crcs": False},
    )
    try:
        return [_place(range_) | _content(consumer, range_) for range_ in ranges]
    finally:
        consumer.close()


def _place(range_: OffsetRange) -> dict[str, Any]:
    return {"topic": range_.topic, "partition": range_.partition, "offset": range_.first}


def _content(consumer: Consumer, range_: OffsetRange) -> dict[str, Any]:
    consumer.assign([TopicPartition(range_.topic, range_.partition, range_.first)])
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        error = message.error() if message else None
        if message is None or (error and error.code() != KafkaError._PARTITION_EOF):
            return {}
        if not error:
            return _values(message) if message.offset() == range_.first else {}
    return {}


def _values(message: Message) -> dict[str, Any]:
    named = headers(message)
    in_base64 = None if named is None else [{"key": name, "value": _base64(value)} for name, value in named]
    key, value, milliseconds = _base64(message.key()), _base64(message.value()), message.timestamp()[1]
    return {"key": key, "value": value, "headers": in_base64, "timestamp_ms": milliseconds}


def _base64(value: Any) -> str | None:
    return None if value is None else base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
