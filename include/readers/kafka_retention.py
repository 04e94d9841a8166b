"""Kafka's clock: how long until retention deletes what a flow has not read, and what it has deleted already.

Positions are the next offsets to read, as a checkpoint keeps them. A partition without one is unread from 0 on, as for
Spark. Of the two limits the one that comes first counts:

- By time, a lower bound. Kafka deletes segments, oldest first, once the newest timestamp in them is `retention.ms` old.
  So an unread record stays until it and all before it are that old: one record dated 1970 does not start the clock.
- By size, an estimate. No client is told how many bytes a partition has. Sampled records give the unread bytes, the age
  of the first of them the rate at which they come; they fall off once they have grown to `retention.bytes`.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from include.readers import kafka_broker
from include.readers.kafka_broker import Record

# Records looked at before and from a position.
AROUND = 10
# What Kafka adds to a record that is a batch of its own: the most there is, so that the estimate errs early.
OVERHEAD_BYTES = 70


@dataclass(frozen=True)
class Clock:
    """`expires_in_seconds` is 0 where records are due or lost, None where retention takes nothing unread.

    oldest_at: when the first unread record was made, by its own time in seconds; None where there is none.
    """

    topic: str
    partition: int
    position: int
    begin: int
    end: int
    unread: int
    expires_in_seconds: float | None
    retention_seconds: float | None
    why: str
    oldest_at: float | None = None


@dataclass(frozen=True)
class Lost:
    """Offsets from `begin` to before `end` that the broker has no more: unread ones; read ones where it `shrank`.

    end is None where nobody knows it, because the topic is gone.
    """

    topic: str
    partition: int
    begin: int
    end: int | None
    shrank: bool = False


@dataclass(frozen=True)
class Limits:
    """What a topic's configuration lets retention delete; None is no limit."""

    seconds: float | None
    size: int | None
    segment_size: int
    compacts: bool

    @classmethod
    def of(cls, configuration: Mapping[str, str]) -> "Limits":
        deletes = "delete" in configuration["cleanup.policy"]
        milliseconds, size = int(configuration["retention.ms"]), int(configuration["retention.bytes"])
        return cls(
            seconds=milliseconds / 1000 if deletes and milliseconds >= 0 else None,
            size=size if deletes and size >= 0 else None,
            segment_size=int(configuration["segment.bytes"]),
            compacts="compact" in configuration["cleanup.policy"],
        )

    @property
    def some(self) -> bool:
        return self.seconds is not None or self.size is not None


@dataclass(frozen=True)
class Place:
    """Where a flow stands in a partition."""

    topic: str
    partition: int
    position: int
    begin: int
    end: int

    @property
    def unread(self) -> int:
        return max(0, self.end - max(self.position, self.begin))

    @property
    def around(self) -> tuple[int, int]:
        first = max(self.begin, self.position)
        return max(self.begin, first - AROUND), first + AROUND - 1

    @property
    def lost(self) -> Lost | None:
        if self.position < self.begin:
            return Lost(self.topic, self.partition, self.position, self.begin)
        if self.position > self.end:
            return Lost(self.topic, self.partition, self.end, self.position, shrank=True)
        return None


def clock(servers: str, topic: str, positions: Mapping[int, int]) -> list[Clock]:
    """The clock of each partition. Raises Unreachable."""
    topics = kafka_broker.Topics(servers)
    return clocks(servers, _places(topics, topic, positions), Limits.of(topics.configuration(topic)))


def clocks(servers: str, places: Iterable[Place], limits: Limits) -> list[Clock]:
    """Of places in one topic, which has these limits. Raises Unreachable."""
    asked = list(places)
    spans = {place.partition: place.around for place in asked if place.unread}
    records = kafka_broker.records(servers, asked[0].topic, spans) if spans else {}
    now = time.time()
    return [_clock(place, limits, records.get(place.partition, []), now) for place in asked]


def soonest(clocks: Iterable[Clock]) -> Clock | None:
    """The one that runs out first; None where none runs."""
    running = [(one.expires_in_seconds, one) for one in clocks if one.expires_in_seconds is not None]
    return min(running, key=lambda one: one[0])[1] if running else None


def lost(servers: str, topic: str, positions: Mapping[int, int]) -> list[Lost]:
    """What lies between the positions and what the broker has. Raises Unreachable."""
    return [place.lost for place in _places(kafka_broker.Topics(servers), topic, positions) if place.lost]


def _places(topics: kafka_broker.Topics, topic: str, positions: Mapping[int, int]) -> list[Place]:
    offsets = topics.offsets(topic)
    return [
        Place(topic, partition, positions.get(partition, 0), *offsets.get(partition, (0, 0)))
        for partition in sorted({*offsets, *positions})
    ]


def _clock(place: Place, limits: Limits, records: list[Record], now: float) -> Clock:
    def says(seconds: float | None, why: str) -> Clock:
        return Clock(
            *(place.topic, place.partition, place.position, place.begin, place.end, place.unread),
            *(None if seconds is None else max(0.0, seconds), limits.seconds, why, oldest_at),
        )

    unread = [record for record in records if record.offset >= place.position]
    oldest_at = min(unread, key=lambda record: record.offset).timestamp if unread else None

    if gone := place.lost:
        if gone.shrank:
            return says(None, f"the partition ends at {place.end}, before the position: it was cut or created anew")
        return says(0, f"offsets {gone.begin} to {place.begin - 1} were deleted before they were read")
    if not place.unread:
        return says(None, "everything is read")
    compaction = "; compaction may remove the older values of a key before they are read" if limits.compacts else ""
    if not limits.some:
        return says(None, f"no time and no size is set after which records are deleted{compaction}")
    if not unread:
        return says(None, "no record is left to read, only the marks of transactions")
    running = [said for by in (_by_time, _by_size) if (said := by(place, limits, records, now))]
    if not running:
        return says(None, f"retention.bytes fills at an unknown rate: the unread records are dated ahead{compaction}")
    seconds, why = min(running)
    return says(seconds, why + compaction)


def _by_time(place: Place, limits: Limits, records: list[Record], now: float) -> tuple[float, str] | None:
    if limits.seconds is None:
        return None
    first = _first(place, records)
    age = now - max(record.timestamp for record in records if record.offset <= first.offset)
    dated = f"{age:,.0f} s old" if age >= 0 else f"dated {-age:,.0f} s ahead"
    return limits.seconds - age, (
        f"what is stored up to its first unread record, offset {first.offset}, is {dated}, "
        f"and retention.ms keeps {limits.seconds:,.0f} s"
    )


def _by_size(place: Place, limits: Limits, records: list[Record], now: float) -> tuple[float, str] | None:
    age = now - _first(place, records).timestamp
    if limits.size is None or age <= 0:
        return None
    # The partition is hardly ever larger than this, so a larger sample is compressed on the broker.
    most = (limits.size + limits.segment_size) / (place.end - place.begin)
    sampled = OVERHEAD_BYTES + sum(record.size for record in records) / len(records)
    unread = place.unread * min(most, sampled)
    return age * (limits.size / unread - 1), (
        f"by estimate {unread:,.0f} bytes are unread after {age:,.0f} s, and retention.bytes keeps {limits.size:,}"
    )


def _first(place: Place, records: list[Record]) -> Record:
    return min((record for record in records if record.offset >= place.position), key=lambda record: record.offset)
