"""Kafka records as odd as a seed makes them: each kind of payload whole, and damaged."""

import json
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from confluent_kafka import Producer

from tests.support.topic import Topic

NOW_MS = 1_772_000_000_000
NUMBERS = (
    "0", "-0", "1", "1.0", "1e3", "1E400", "-1e-400", "0.1", "12345678901234567890", "9" * 60, "1" + "0" * 300,
    "00", "+1", ".5", "5.", "NaN", "Infinity", "-Infinity", "0x10", "1_000", "٣", "true", "null", '""', '"12"',
    "2147483648", "9223372036854775807", "9223372036854775808", "0.123456789012345678901234567890",
)  # fmt: skip
TIMES = (
    "2026-03-01T12:00:00Z", "2026-03-01T12:00Z", "2026-03-01", "2026-02-30T00:00:00Z", "0000-01-01T00:00:00Z",
    "9999-12-31T23:59:59-05:00", "+12026-01-01T00:00:00Z", "-0001-01-01", "1969-12-31T23:59:59.999999999+14:00",
    "2026-03-01T24:00:00Z", "2026-03-01 12:00:00 Europe/Berlin", "now", "epoch", "12:00", "", "20260301T120000Z",
)  # fmt: skip
TEXTS = (
    "", " ", "x", "é", "\u202e", "\ufeff", "\x00", "\u2028", "😀", "\\", '"', "'", "a" * 5_000, "NULL", "null",
    "__debezium_unavailable_value", "{}", "[]", "%s", "\t\r\n", "Ω" * 40,
)  # fmt: skip
RAW = (b"", b"{", b"}", b"[", b"[]", b"{}", b"null", b"42", b'"', b"\xff\xfe\x00", b"\xed\xa0\x80", b"\xef\xbb\xbf{}")
UNLIMITED = str(2**63 - 1)
# Of a topic whose records may have any time, and stay however old they are.
ANY_TIME = {
    "message_timestamp_after_max_ms": UNLIMITED,
    "message_timestamp_before_max_ms": UNLIMITED,
    "retention_ms": "-1",
}
STAMPS = (NOW_MS, 0, 1, NOW_MS * 1_000, NOW_MS * 1_000_000, 253_402_300_799_999, 253_402_300_800_000, 2**63 - 1)


@dataclass(frozen=True)
class OddRecord:
    """timestamp: in milliseconds since 1970, as the producer says."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


class OddRecords:
    """Makes the records of a seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def __call__(self, count: int) -> Iterator[OddRecord]:
        kinds: tuple[Callable[[], bytes | None], ...] = (
            self._event, self._event, self._event, self._change, self._change, self._avro, self._damaged, self._noise,
        )  # fmt: skip
        for _ in range(count):
            # Most of a topic is well-formed.
            value = self._plain_event() if self._chance.random() < 0.4 else self._chance.choice(kinds)()
            stamp = NOW_MS if self._chance.random() < 0.97 else self._chance.choice(STAMPS)
            yield OddRecord(self._key(), value, self._headers(), stamp)

    def _plain_event(self) -> bytes:
        event = {
            "id": self._chance.randrange(500),
            "at": f"2026-03-{self._chance.randrange(1, 28):02}T{self._chance.randrange(24):02}:00:00Z",
            "amount": self._chance.randrange(10_000) / 100,
            "name": self._chance.choice(("ann", "bob", "cy")),
            "divisor": self._chance.choice((1, 2, 3, 3, 3, 4)),
        }
        return json.dumps(event).encode()

    def _event(self) -> bytes:
        fields = [
            ("id", self._number()), ("at", self._time()), ("amount", self._number()), ("name", self._text()),
            ("divisor", self._chance.choice(("0", "1", "2", "null"))), (self._chance.choice(TEXTS), self._nested(3)),
        ]  # fmt: skip
        self._chance.shuffle(fields)
        chosen = fields[: self._chance.randrange(1, 7)]
        if self._chance.random() < 0.1:
            chosen.append(chosen[0])
        return ("{" + ", ".join(f"{json.dumps(name)}: {value}" for name, value in chosen) + "}").encode()

    def _change(self) -> bytes | None:
        if self._chance.random() < 0.1:
            return None
        row = f'{{"id": {self._number()}, "name": {self._text()}, "at": {self._time()}}}'
        good = f'{{"id": {self._chance.randrange(50)}, "name": "x", "at": {self._chance.randrange(10**15)}}}'
        after = self._chance.choice((row, good, good, "null", "{}", "[]"))
        operation = self._chance.choice(('"c"', '"u"', '"d"', '"r"', '"t"', '"x"', "null", "1"))
        place = self._chance.choice((str(self._chance.randrange(10**6)), self._number(), '"0/16B3748"'))
        event = f'{{"before": {good}, "after": {after}, "op": {operation}, "source": {{"lsn": {place}}}}}'
        return (event if self._chance.random() < 0.5 else f'{{"schema": null, "payload": {event}}}').encode()

    def _avro(self) -> bytes:
        body = bytes(self._chance.randrange(256) for _ in range(self._chance.randrange(40)))
        if self._chance.random() < 0.5:
            # A record of one text field.
            text = self._chance.choice(TEXTS).encode()[:60]
            body = bytes([len(text) * 2]) + text
        return struct.pack(">bI", self._chance.choice((0, 0, 0, 1)), self._chance.choice((1, 1, 2, 99, 2**31))) + body

    def _damaged(self) -> bytes:
        value = bytearray(self._event())
        for _ in range(self._chance.randrange(1, 4)):
            place = self._chance.randrange(len(value))
            match self._chance.randrange(4):
                case 0:
                    value[place] = self._chance.randrange(256)
                case 1:
                    del value[place:]
                case 2:
                    value[place:place] = self._chance.choice(RAW)
                case 3:
                    value += bytes(value)
            if not value:
                break
        return bytes(value)

    def _noise(self) -> bytes:
        if self._chance.random() < 0.5:
            return self._chance.choice(RAW)
        return bytes(self._chance.randrange(256) for _ in range(self._chance.randrange(200)))

    def _number(self) -> str:
        return self._chance.choice(NUMBERS) if self._chance.random() < 0.5 else str(self._chance.randrange(500))

    def _time(self) -> str:
        return json.dumps(self._chance.choice(TIMES)) if self._chance.random() < 0.8 else self._number()

    def _text(self) -> str:
        text = json.dumps(self._chance.choice(TEXTS), ensure_ascii=self._chance.random() < 0.5)
        return text if self._chance.random() < 0.9 else self._chance.choice(('"\\ud800"', '"\\udc00\\ud800"', '"\\x"'))

    def _nested(self, depth: int) -> str:
        if depth == 0 or self._chance.random() < 0.3:
            return self._chance.choice((self._number, self._time, self._text))()
        inner = [self._nested(depth - 1) for _ in range(self._chance.randrange(4))]
        if self._chance.random() < 0.5:
            return f"[{', '.join(inner)}]"
        return "{" + ", ".join(f"{self._text()}: {value}" for value in inner) + "}"

    def _key(self) -> bytes | None:
        return self._chance.choice((None, b"", b"k", b"\xff\xfe", "é".encode(), b"x" * 1_000))

    def _headers(self) -> list[tuple[str, bytes | None]]:
        names, values = ("", "h", "é", "h" * 200, "\ufffd"), (None, b"", b"\xff", b"v" * 500)
        return [
            (self._chance.choice(names), self._chance.choice(values))
            for _ in range(self._chance.choice((0, 0, 0, 1, 3)))
        ]


def send(topic: Topic, records: Iterator[OddRecord]) -> None:
    producer = Producer({"bootstrap.servers": topic.servers, "log_level": 0})
    errors: list[object] = []
    for number, record in enumerate(records):
        producer.produce(
            topic.name,
            record.value,
            record.key,
            partition=number % topic.partitions,
            timestamp=record.timestamp,
            headers=record.headers,
            on_delivery=lambda error, _: errors.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(120) == 0
    assert errors == []
