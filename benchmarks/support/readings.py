"""Readings of fitness trackers for the benchmarks: as Kafka records, and as rows of bronze and silver.

Of a hundred readings, one is implausible and one repeats the previous one. The same number gives the same reading.
"""

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from deltalake import write_deltalake

TOPIC = "readings"
START = datetime(2026, 1, 1, tzinfo=UTC)
DEVICES, MODELS = 1000, 5
# Twenty readings a second.
INTERVAL = timedelta(milliseconds=50)


def reading(number: int) -> dict[str, Any]:
    number -= number % 100 == 13
    return {
        "device_id": f"tracker-{number % DEVICES:04d}",
        "time": START + number * INTERVAL,
        "model": f"model-{number % MODELS}",
        "heart_bpm": 0 if number % 100 == 7 else 45 + number % 140,
        "kcal": Decimal(number % 180) / 1000,
    }


def payload(number: int, size: int = 0) -> bytes:
    """A reading as JSON. With `size`, random text extends it to this number of bytes, up to 250."""
    fields = reading(number)
    fields |= {"time": fields["time"].isoformat(), "kcal": float(fields["kcal"])}
    text = json.dumps(fields)
    if size:
        room = max(0, size - len(text) - len(', "note": ""'))
        fields["note"] = hashlib.blake2b(b"%d" % number).hexdigest()[:room]
        text = json.dumps(fields)
    return text.encode()


def send(address: str, topic: str, first: int, count: int, size: int = 0) -> None:
    """Send readings, and wait until the broker has all of them."""
    producer = Producer({"bootstrap.servers": address, "linger.ms": 100, "log_level": 0})
    for number in range(first, first + count):
        while True:
            try:
                producer.produce(topic, payload(number, size), key=f"tracker-{number % DEVICES:04d}")
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def bronze_rows(first: int, count: int) -> pa.Table:
    """Readings as Kafka records, with the columns of `include.spec.KAFKA_SCHEMA`."""
    numbers = range(first, first + count)
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    times = [START + number * INTERVAL for number in numbers]
    return pa.table(
        {
            "key": pa.array([b"%d" % (number % DEVICES) for number in numbers], pa.binary()),
            "value": pa.array([payload(number) for number in numbers], pa.binary()),
            "headers": pa.nulls(count, pa.list_(header)),
            "topic": pa.array([TOPIC] * count, pa.string()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(numbers, pa.int64()),
            "timestamp": pa.array(times, pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
        }
    )


def silver_rows(first: int, count: int) -> pa.Table:
    """The valid readings, with the columns device_id, time, model, heart_bpm, kcal."""
    kinds = {"time": pa.timestamp("us", "UTC"), "heart_bpm": pa.int32(), "kcal": pa.decimal128(9, 3)}
    good = [reading(number) for number in range(first, first + count) if number % 100 not in (7, 13)]
    names = list(reading(0))
    return pa.table({name: pa.array([row[name] for row in good], kinds.get(name, pa.string())) for name in names})


def append(path: Path, rows: Callable[[int, int], pa.Table], first: int, count: int, commits: int) -> None:
    """Append `commits` commits of `count` rows, each with one file."""
    for number in range(commits):
        write_deltalake(str(path), rows(first + number * count, count), mode="append")
