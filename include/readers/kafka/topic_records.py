"""Reads the positions, times and sizes of records, without a JVM."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from include.errors import Unreachable
from include.readers import kafka_broker
from include.readers.kafka.cluster import Cluster
from include.readers.kafka.connection_errors import ConnectionErrors


@dataclass(frozen=True)
class Record:
    """A record's position. timestamp: seconds since 1970. size: bytes of key, value and headers, uncompressed."""

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
    deadline = time.monotonic() + kafka_broker.TIMEOUT_SECONDS
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


def _record(message: Message) -> Record:
    headers = sum(len(header[0]) + len(header[1] or b"") for header in message.headers() or [])
    size = len(message.key() or b"") + len(message.value() or b"") + headers
    return Record(message.offset() or 0, message.timestamp()[1] / 1000, size)
