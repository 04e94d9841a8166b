"""Random events of fitness trackers, with realistic errors. The same seed gives the same events."""

import json
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

MODELS = ("Pulse One", "Pulse Two", "Stride", "Stride Pro", "Orbit")
VERSIONS = ("1.0.4", "1.1.0", "2.0.1")
DEVICES = 1000
# Each kind of error occurs in about one event of a hundred.
TROUBLES = ("malformed", "empty", "tombstone", "wrong type", "implausible", "late", "repeated")
TROUBLE_SHARE = 0.01
WRONG_TYPES = (("heart_bpm", "fast"), ("kcal", "a lot"), ("time", "yesterday"))
IMPLAUSIBLE_BPM = (0, 400)
LATE_SECONDS = (30, 180)
RECENT = 100


@dataclass(frozen=True)
class Event:
    """A Kafka record. `kind` is the kind of its error, or "good"."""

    key: bytes | None
    value: bytes | None
    kind: str


def events(seed: int, count: int, start: datetime, per_second: float) -> Iterator[Event]:
    """Generate `count` events from `start` (UTC) on, at a rate of `per_second`.

    The key is the device. Readings of a device have different times, except a repeated event, which is an exact copy of
    a recent good event.
    """
    chance = random.Random(seed)
    recent: deque[Event] = deque(maxlen=RECENT)
    clock = _Clock()
    for number in range(count):
        kind = _kind(chance)
        if kind == "repeated" and not recent:
            kind = "good"
        if kind == "repeated":
            earlier_event = chance.choice(recent)
            yield Event(earlier_event.key, earlier_event.value, kind)
            continue
        device = f"tracker-{chance.randrange(DEVICES):04d}"
        late_seconds = chance.uniform(*LATE_SECONDS) if kind == "late" else 0
        moment = clock.moment(device, start + timedelta(seconds=number / per_second), late_seconds)
        event = Event(device.encode(), _value(chance, kind, device, _text(moment)), kind)
        if kind == "good":
            recent.append(event)
        yield event


class _Clock:
    """Assigns unique times (ms) to the readings of a device: even for punctual readings, odd for late ones."""

    def __init__(self) -> None:
        self._last: dict[str, datetime] = {}
        self._late_times: dict[tuple[str, datetime], datetime] = {}

    def moment(self, device: str, due_at: datetime, late_seconds: float) -> datetime:
        if not late_seconds:
            moment = _even(due_at)
            last = self._last.get(device)
            if last and moment <= last:
                moment = last + timedelta(milliseconds=2)
            self._last[device] = moment
            return moment
        moment = _even(due_at - timedelta(seconds=late_seconds)) + timedelta(milliseconds=1)
        while (device, moment) in self._late_times:
            moment += timedelta(milliseconds=2)
        self._late_times[device, moment] = due_at
        self._forget(due_at - timedelta(seconds=LATE_SECONDS[1]))
        return moment

    def _forget(self, before: datetime) -> None:
        # A dict keeps the order of insertion, so the oldest entry comes first.
        while (oldest := next(iter(self._late_times))) and self._late_times[oldest] < before:
            del self._late_times[oldest]


def _kind(chance: random.Random) -> str:
    index = int(chance.random() / TROUBLE_SHARE)
    return TROUBLES[index] if index < len(TROUBLES) else "good"


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
