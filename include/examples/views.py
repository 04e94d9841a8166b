"""Random page views of browsers, with realistic errors. The same seed gives the same views."""

import random
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta

from include.examples.events import Event

TOPIC = "page-views"
DOCUMENTS, USERS = 200, 500
REFERRERS = ("https://search.example/?q=delta", "https://news.example/", "/home", "/library")
# Each kind of error occurs in about one view of a hundred.
TROUBLES = ("malformed", "cut off", "too long", "unknown schema", "no header", "empty", "tombstone", "late", "repeated")
TROUBLE_SHARE = 0.01
# The share of views with schema 1.
OLD_SHARE = 0.3
UNKNOWN_SCHEMA = 99
LATE_SECONDS = (600, 7_200)
REPEATED_WITHIN_SECONDS = 60


def views(seed: int, count: int, start: datetime, per_second: float) -> Iterator[Event]:
    """Generate `count` views from `start` (UTC) on, at a rate of `per_second`. The key is the document.

    A repeated view is an exact copy of a good view of the last minute.
    """
    chance = random.Random(seed)
    # Only good views, which are fewer than all views of that time.
    recent: deque[Event] = deque(maxlen=max(1, int(0.8 * REPEATED_WITHIN_SECONDS * per_second)))
    for number in range(count):
        kind = _kind(chance)
        if kind == "repeated" and recent:
            earlier_view = chance.choice(recent)
            yield Event(earlier_view.key, earlier_view.value, kind)
            continue
        due_at = start + timedelta(seconds=number / per_second)
        document = f"document-{chance.randrange(DOCUMENTS):03d}"
        late_seconds = chance.uniform(*LATE_SECONDS) if kind == "late" else 0
        value = _view(chance, kind, document, due_at - timedelta(seconds=late_seconds))
        kind = "good" if kind == "repeated" else kind
        view = Event(document.encode(), value, kind)
        if kind == "good":
            recent.append(view)
        yield view


def _kind(chance: random.Random) -> str:
    index = int(chance.random() / TROUBLE_SHARE)
    return TROUBLES[index] if index < len(TROUBLES) else "good"


def _view(chance: random.Random, kind: str, document: str, time: datetime) -> bytes | None:
    schema_id = 1 if chance.random() < OLD_SHARE else 2
    user = f"user-{chance.randrange(USERS):03d}" if chance.random() < 0.8 else None
    body = _text(f"view-{chance.getrandbits(64):016x}") + _long(int(time.timestamp() * 1000))
    body += _text(document) + _optional(user)
    if schema_id == 2:
        body += _optional(chance.choice(REFERRERS) if chance.random() < 0.5 else None)
    header = b"\0" + (UNKNOWN_SCHEMA if kind == "unknown schema" else schema_id).to_bytes(4, "big")
    match kind:
        case "malformed":
            return header + chance.randbytes(20)
        case "cut off":
            return header + body[: chance.randrange(len(body) - 1)]
        case "too long":
            return header + body + b"\0"
        case "no header":
            return body
        case "empty":
            return b""
        case "tombstone":
            return None
    return header + body


def _optional(text: str | None) -> bytes:
    """Encode the Avro union of null and string."""
    return _long(0) if text is None else _long(1) + _text(text)


def _text(text: str) -> bytes:
    return _long(len(text.encode())) + text.encode()


def _long(number: int) -> bytes:
    """Encode an Avro long: zigzag and variable length."""
    remaining = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while remaining > 0x7F:
        encoded.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    encoded.append(remaining)
    return bytes(encoded)
