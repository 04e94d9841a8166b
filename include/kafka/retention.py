"""Tells when Kafka's retention deletes what a flow has not read, and what it has deleted already.

Positions are the next offsets to read, as in a checkpoint. Spark reads a partition without a position from offset 0 on.
The earlier of two limits counts:

- Time gives a lower bound. Kafka deletes the oldest segment once its newest timestamp is older than `retention.ms`.
  An unread record therefore stays until it and all records before it are that old.
- Size gives an estimate, because Kafka does not tell clients how many bytes a partition has. A sample of records gives
  the unread bytes, and the age of the first of them gives their rate of arrival. Unread records are deleted once they
  have grown to `retention.bytes`.
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from include.kafka import broker
from include.kafka.broker import Record
from include.kafka.cluster import Cluster

# People should know in time to act: from half of the topic's retention on, or for a day if only its size is limited.
SOON_SHARE = 0.5
SOON_SECONDS = 86_400
# The number of records that are sampled before and after a position.
AROUND = 10
# Kafka's largest overhead for a record: that of a batch with one record. It makes the estimate err on the early side.
OVERHEAD_BYTES = 70


@dataclass(frozen=True)
class RetentionClock:
    """When retention deletes the first unread record of a partition.

    expires_in_seconds: 0 where records are due or lost, None where retention deletes nothing unread.
    oldest_at: the timestamp of the first unread record, in seconds since 1970; None where there is none.
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

    @property
    def is_soon(self) -> bool:
        """Whether people should know that retention deletes unread records."""
        soon_seconds = SOON_SHARE * self.retention_seconds if self.retention_seconds else SOON_SECONDS
        return self.expires_in_seconds is not None and self.expires_in_seconds <= soon_seconds


@dataclass(frozen=True)
class LostOffsets:
    """Offsets from `begin` to before `end` that the broker no longer has.

    shrank: they were read, and the partition ends before them; else they are unread. end is None for a deleted topic.
    """

    topic: str
    partition: int
    begin: int
    end: int | None
    shrank: bool = False


@dataclass(frozen=True)
class Limits:
    """What a topic's configuration lets retention delete, in seconds and bytes; None is no limit."""

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
class PartitionPosition:
    """A flow's position in a partition, and the partition's first and next offset."""

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
    def lost(self) -> LostOffsets | None:
        if self.position < self.begin:
            return LostOffsets(self.topic, self.partition, self.position, self.begin)
        if self.position > self.end:
            return LostOffsets(self.topic, self.partition, self.end, self.position, shrank=True)
        return None


def clock(cluster: Cluster, topic: str, positions: Mapping[int, int]) -> list[RetentionClock]:
    """Returns the clock of each partition of a topic. Raises Unreachable."""
    topics = broker.Topics(cluster)
    return clocks(cluster, _places(topics, topic, positions), Limits.of(topics.configuration(topic)))


def clocks(cluster: Cluster, places: Iterable[PartitionPosition], limits: Limits) -> list[RetentionClock]:
    """Returns the clocks of places in one topic, which has these limits. Raises Unreachable."""
    listed = list(places)
    spans = {place.partition: place.around for place in listed if place.unread}
    records = broker.read(cluster, listed[0].topic, spans) if spans else {}
    now_seconds = time.time()
    return [_clock(place, limits, records.get(place.partition, []), now_seconds) for place in listed]


def first_to_expire(clocks: Iterable[RetentionClock]) -> RetentionClock | None:
    """Returns the clock that expires first; None where none expires."""
    running = [(clock.expires_in_seconds, clock) for clock in clocks if clock.expires_in_seconds is not None]
    return min(running, key=lambda candidate: candidate[0])[1] if running else None


def lost_offsets(cluster: Cluster, topic: str, positions: Mapping[int, int]) -> list[LostOffsets]:
    """Returns the offsets between the positions and what the broker still has. Raises Unreachable."""
    return [place.lost for place in _places(broker.Topics(cluster), topic, positions) if place.lost]


def _places(topics: broker.Topics, topic: str, positions: Mapping[int, int]) -> list[PartitionPosition]:
    offsets = topics.offsets(topic)
    return [
        PartitionPosition(topic, partition, positions.get(partition, 0), *offsets.get(partition, (0, 0)))
        for partition in sorted({*offsets, *positions})
    ]


def _clock(place: PartitionPosition, limits: Limits, records: list[Record], now_seconds: float) -> RetentionClock:
    def result(seconds: float | None, why: str) -> RetentionClock:
        return RetentionClock(
            *(place.topic, place.partition, place.position, place.begin, place.end, place.unread),
            *(None if seconds is None else max(0.0, seconds), limits.seconds, why, oldest_at),
        )

    unread = [record for record in records if record.offset >= place.position]
    oldest_at = min(unread, key=lambda record: record.offset).timestamp if unread else None

    if lost_range := place.lost:
        if lost_range.shrank:
            return result(None, f"the partition ends at {place.end}, before the position: it was cut or recreated")
        return result(0, f"offsets {lost_range.begin} to {place.begin - 1} were deleted before they were read")
    if not place.unread:
        return result(None, "everything is read")
    compaction = "; compaction may remove the older values of a key before they are read" if limits.compacts else ""
    if not limits.some:
        return result(None, f"no time and no size is set after which records are deleted{compaction}")
    if not unread:
        return result(None, "no record is left to read, only the marks of transactions")
    expiries = [
        expiry for expiry_by in (_by_time, _by_size) if (expiry := expiry_by(place, limits, records, now_seconds))
    ]
    if not expiries:
        return result(None, f"retention.bytes fills at an unknown rate: the unread records are dated ahead{compaction}")
    seconds, why = min(expiries)
    return result(seconds, why + compaction)


def _by_time(
    place: PartitionPosition, limits: Limits, records: list[Record], now_seconds: float
) -> tuple[float, str] | None:
    if limits.seconds is None:
        return None
    first = _first_unread(place, records)
    age = now_seconds - max(record.timestamp for record in records if record.offset <= first.offset)
    dated = f"{age:,.0f} s old" if age >= 0 else f"dated {-age:,.0f} s ahead"
    return limits.seconds - age, (
        f"what is stored up to its first unread record, offset {first.offset}, is {dated}, "
        f"and retention.ms keeps {limits.seconds:,.0f} s"
    )


def _by_size(
    place: PartitionPosition, limits: Limits, records: list[Record], now_seconds: float
) -> tuple[float, str] | None:
    age = now_seconds - _first_unread(place, records).timestamp
    if limits.size is None or age <= 0:
        return None
    # A partition rarely exceeds its limit by more than one segment. A larger sample mean indicates compression.
    largest_mean = (limits.size + limits.segment_size) / (place.end - place.begin)
    sampled_mean = OVERHEAD_BYTES + sum(record.size for record in records) / len(records)
    unread = place.unread * min(largest_mean, sampled_mean)
    return age * (limits.size / unread - 1), (
        f"by estimate {unread:,.0f} bytes are unread after {age:,.0f} s, and retention.bytes keeps {limits.size:,}"
    )


def _first_unread(place: PartitionPosition, records: list[Record]) -> Record:
    return min((record for record in records if record.offset >= place.position), key=lambda record: record.offset)
