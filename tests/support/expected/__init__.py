"""Computes the expected tables from the topic in plain Python, without Spark and without code of the project."""

import json
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

COLUMNS = ("device_id", "time", "version", "model", "heart_bpm", "kcal", "topic", "partition", "offset")


@dataclass(frozen=True)
class Message:
    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None


def messages(servers: str, topic: str) -> list[Message]:
    """All messages of the topic, sorted by partition and offset."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "expected", "enable.partition.eof": True})
    partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    records, unfinished = [], set(partitions)
    while unfinished:
        record = consumer.poll(10)
        if record is None or record.error():
            assert record is not None and record.error().name() == "_PARTITION_EOF", record and record.error()
            unfinished.discard(record.partition())
            continue
        records.append(Message(topic, record.partition(), record.offset(), record.key(), record.value()))
    consumer.close()
    return sorted(records, key=lambda message: (message.partition, message.offset))


def silver_and_quarantine(topic: list[Message]) -> tuple[dict, set]:
    """Silver rows by (device, time), and the (partition, offset) of every quarantined message."""
    silver: dict = {}
    quarantine = set()
    for message in topic:
        row = _typed(message)
        has_key = row["device_id"] is not None and row["time"] is not None
        if not has_key or row["heart_bpm"] is None or not 20 <= row["heart_bpm"] <= 250:
            quarantine.add((message.partition, message.offset))
        else:
            silver.setdefault((row["device_id"], row["time"]), row)
    return silver, quarantine


def gold(silver: dict) -> dict:
    """By (model, minute): the count, the average, minimum and maximum heart rate, and the sum of kcal."""
    groups = defaultdict(list)
    for row in silver.values():
        groups[row["model"], row["time"].replace(second=0, microsecond=0)].append(row)
    return {key: _summary(rows) for key, rows in groups.items()}


def _summary(rows: list[dict]) -> tuple:
    rates = [row["heart_bpm"] for row in rows]
    energies = [row["kcal"] for row in rows if row["kcal"] is not None]
    return len(rows), sum(rates) / len(rates), min(rates), max(rates), sum(energies) if energies else None


def _typed(message: Message) -> dict:
    try:
        payload = json.loads(message.value or b"")
    except ValueError:
        payload = {}
    return {
        "device_id": payload.get("device_id"),
        "time": _time(payload.get("time")),
        "version": payload.get("version"),
        "model": payload.get("model"),
        "heart_bpm": payload["heart_bpm"] if isinstance(payload.get("heart_bpm"), int) else None,
        "kcal": _decimal(payload.get("kcal")),
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
    }


def _time(text: str | None) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC) if text else None
    except ValueError:
        return None


def _decimal(value: object) -> Decimal | None:
    try:
        return Decimal(str(value)) if value is not None else None
    except InvalidOperation:
        return None
