"""Reads single records as the broker has them, for what Spark cannot read."""

import base64
import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from include.readers import kafka_broker
from include.readers.kafka import cluster
from include.readers.offset_ranges import OffsetRange
from include.spec import Kafka


def read(source: Kafka, ranges: Iterable[OffsetRange]) -> list[dict[str, Any]]:
    """Returns the first record of each range, as JSON values: bytes in base64, its time in milliseconds since 1970.

    Where the broker does not deliver it, the place alone is known.
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
    deadline = time.monotonic() + kafka_broker.TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        message = consumer.poll(max(0.0, deadline - time.monotonic()))
        error = message.error() if message else None
        if message is None or (error and error.code() != KafkaError._PARTITION_EOF):
            return {}
        if not error:
            return _values(message) if message.offset() == range_.first else {}
    return {}


def _values(message: Message) -> dict[str, Any]:
    headers = [{"key": header[0], "value": _base64(header[1])} for header in message.headers() or []]
    key, value, milliseconds = _base64(message.key()), _base64(message.value()), message.timestamp()[1]
    return {"key": key, "value": value, "headers": headers, "timestamp_ms": milliseconds}


def _base64(value: Any) -> str | None:
    return None if value is None else base64.b64encode(value.encode() if isinstance(value, str) else value).decode()
