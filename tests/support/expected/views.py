"""Computes the expected tables of page views in plain Python, without Spark, Avro and code of the project."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.expected import Message

FIELDS = ("view_id", "time", "document_id", "user_id", "referrer")
EMPTY_ROW = dict.fromkeys(FIELDS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECONDS_OF_YEARS = (-62_135_596_800_000, 253_402_300_799_999)
MAX_MILLISECONDS = 2**63 // 1000
MAX_BYTES = 32_000_000


class InvalidAvro(Exception):
    """The bytes do not match the schema whose id they name."""


class Reader:
    """A decoder of Avro's binary encoding."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0

    def take(self, count: int) -> bytes:
        if count < 0 or count > MAX_BYTES or self.position + count > len(self.data):
            raise InvalidAvro
        self.position += count
        return self.data[self.position - count : self.position]

    def long(self, max_bytes: int = 10) -> int:
        number = 0
        for position in range(max_bytes):
            [byte] = self.take(1)
            number |= (byte & 0x7F) << 7 * position
            if byte < 0x80:
                # Overflowing bits are dropped.
                number &= 2**64 - 1 if max_bytes == 10 else 2**32 - 1
                return (number >> 1) ^ -(number & 1)
        raise InvalidAvro

    def text(self) -> bytes:
        return self.take(self.long())

    def optional(self) -> bytes | None:
        match self.long(max_bytes=5):
            case 0:
                return None
            case 1:
                return self.text()
        raise InvalidAvro


def decode(value: bytes | None) -> tuple[dict[str, Any], list[str]]:
    """The typed fields of a message, and the names of the fields (or "value") that cannot be decoded."""
    schema_id = int.from_bytes(value[1:5], "big") if value and len(value) >= 5 and value[0] == 0 else None
    if value is None or schema_id not in (1, 2):
        return EMPTY_ROW, ["value"]
    reader = Reader(value[5:])
    try:
        row: dict[str, Any] = {**EMPTY_ROW, "view_id": reader.text(), "time": reader.long()}
        if not -MAX_MILLISECONDS <= row["time"] <= MAX_MILLISECONDS:
            raise InvalidAvro
        row |= {"document_id": reader.text(), "user_id": reader.optional()}
        if schema_id == 2:
            row["referrer"] = reader.optional()
    except InvalidAvro:
        return EMPTY_ROW, ["value"]
    if reader.position < len(reader.data):
        return EMPTY_ROW, ["value"]
    typed = {name: _moment(raw) if name == "time" else _text(raw) for name, raw in row.items()}
    return typed, [name for name in FIELDS if row[name] is not None and typed[name] is None]


def _text(raw: bytes | None) -> str | None:
    try:
        return raw.decode() if raw is not None else None
    except UnicodeDecodeError:
        return None


def _moment(milliseconds: int) -> datetime | None:
    first, last = MILLISECONDS_OF_YEARS
    return EPOCH + timedelta(milliseconds=milliseconds) if first <= milliseconds <= last else None


def silver_and_quarantine(topic: list[Message]) -> tuple[dict, set]:
    """Silver rows by (view, time), and the (partition, offset) of every quarantined message."""
    silver: dict = {}
    quarantine = set()
    for message in topic:
        row, _ = decode(message.value)
        if None in (row["view_id"], row["time"], row["document_id"]):
            quarantine.add((message.partition, message.offset))
        else:
            position = {"partition": message.partition, "offset": message.offset}
            silver.setdefault((row["view_id"], row["time"]), {**row, **position})
    return silver, quarantine


def gold(silver: dict) -> dict:
    """By (document, hour): the number of views, and the number of distinct users."""
    groups = defaultdict(list)
    for row in silver.values():
        hour = row["time"].replace(minute=0, second=0, microsecond=0)
        groups[row["document_id"], hour].append(row["user_id"])
    return {key: (len(users), len({user for user in users if user is not None})) for key, users in groups.items()}
