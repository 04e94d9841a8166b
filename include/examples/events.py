"""Events of fitness trackers, as untidy as the real ones: the same seed gives the same events."""

import json
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MODELS = ("Pulse One", "Pulse Two", "Stride", "Stride Pro", "Orbit")
VERSIONS = ("1.0.4", "1.1.0", "2.0.1")
DEVICES = 1000
# Each kind of trouble, about one event in a hundred.
TROUBLES = ("malformed", "empty", "tombstone", "wrong type", "implausible", "late", "repeated")
TROUBLE_SHARE = 0.01
WRONG_TYPES = (("heart_bpm", "fast"), ("kcal", "a lot"), ("time", "yesterday"))
IMPLAUSIBLE_BPM = (0, 400)
LATE_SECONDS = (30, 180)
RECENT = 100


@dataclass(frozen=True)
class Event:
    """One Kafka record; `kind` says what is wrong with it, or "good"."""

    key: bytes | None
    value: bytes | None
    kind: str


def events(seed: int, count: int, start: datetime, per_second: float) -> Iterator[Event]:
    """`count` events from `start` (UTC) on, evenly `per_second`.

    The key is the device. Two readings of one device never have the same time, other than a repeated one, which is a
    recent good event once more, byte for byte.
    """
    chance = random.Random(seed)
    recent: deque[Event] = deque(maxlen=RECENT)
    clock = _Clock()
    for number in range(count):
        kind = _kind(chance)
        if kind == "repeated" and not recent:
            kind = "good"
        if kind == "repeated":
            again = chance.choice(recent)
            yield Event(again.key, again.value, kind)
            continue
        device = f"tracker-{chance.randrange(DEVICES):04d}"
        late_seconds = chance.uniform(*LATE_SECONDS) if kind == "late" else 0
        moment = clock.moment(device, start + timedelta(seconds=number / per_second), late_seconds)
        event = Event(device.encode(), _value(chance, kind, device, _text(moment)), kind)
        if kind == "good":
            recent.append(event)
        yield event


class _Clock:
    """Gives no device the same millisecond twice: readings in time get even ones, late readings odd ones."""

    def __init__(self) -> None:
        self._last: dict[str, datetime] = {}
        self._late: dict[tuple[str, datetime], datetime] = {}

    def moment(self, device: str, now: datetime, late_seconds: float) -> datetime:
        if not late_seconds:
            moment = _even(now)
            last = self._last.get(device)
            if last and moment <= last:
                moment = last + timedelta(milliseconds=2)
            self._last[device] = moment
            return moment
        moment = _even(now - timedelta(seconds=late_seconds)) + timedelta(milliseconds=1)
        while (device, moment) in self._late:
            moment += timedelta(milliseconds=2)
        self._late[device, moment] = now
        self._forget(now - timedelta(seconds=LATE_SECONDS[1]))
        return moment

    def _forget(self, before: datetime) -> None:
        # A dict keeps the order of insertion, so the oldest come first.
        while (oldest := next(iter(self._late))) and self._late[oldest] < before:
            del self._late[oldest]


def _kind(chance: random.Random) -> str:
    drawn = int(chance.random() / TROUBLE_SHARE)
    return TROUBLES[drawn] if drawn < len(TROUBLES) else "good"


def _value(chance: random.Random, kind: str, device: str, time: str) -> bytes | None:
    bpm = chance.randint(45, 190)
    reading = {
        "device_id": device,
        "time": time,
        "version": chance.choice(VERSIONS),
        "model": chance.choice(MODELS),
        "heart_bpm": bpm,
        "kcal": round(bpm / 1000 * chance.uniform(0.5, 2), 3),
    }
    if kind == "wrong type":
        field, value = chance.choice(WRONG_TYPES)
        reading[field] = value
    elif kind == "implausible":
        reading["heart_bpm"] = chance.choice(IMPLAUSIBLE_BPM)
    text = json.dumps(reading)
    if kind == "malformed":
        text = text[: chance.randrange(1, len(text) - 1)]
    return {"tombstone": None, "empty": b""}.get(kind, text.encode())


def _even(moment: datetime) -> datetime:
    return moment.replace(microsecond=moment.microsecond // 2000 * 2000)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
