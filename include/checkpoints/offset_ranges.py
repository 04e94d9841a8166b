"""Describes what lies between two source offsets as ranges that can be compared, counted and read."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, order=True)
class OffsetRange:
    """The offsets from `first` to before `after` of a topic partition."""

    topic: str
    partition: int
    first: int
    after: int

    @property
    def count(self) -> int:
        return self.after - self.first

    def __str__(self) -> str:
        offsets = f"{self.first}" if self.count == 1 else f"{self.first} to {self.after - 1}"
        return f"{self.topic}/{self.partition} {offsets}"


def kafka_ranges(begin: Any, end: Any) -> list[OffsetRange]:
    """Returns a batch's non-empty ranges. As in Spark, a partition without a begin offset is read from 0 on."""
    ranges = []
    for topic, partitions in (end or {}).items():
        for partition, after in partitions.items():
            first = (begin or {}).get(topic, {}).get(partition, 0)
            if first != after:
                ranges.append(OffsetRange(topic, int(partition), first, after))
    return sorted(ranges)


def merge_adjacent(ranges: list[OffsetRange]) -> list[OffsetRange]:
    """Returns the ranges, with adjacent ones merged."""
    merged: list[OffsetRange] = []
    for current in sorted(ranges):
        last = merged[-1] if merged else None
        if last and (last.topic, last.partition, last.after) == (current.topic, current.partition, current.first):
            merged[-1] = OffsetRange(current.topic, current.partition, last.first, current.after)
        else:
            merged.append(current)
    return merged


def delta_position(offset: Any) -> tuple[int, int]:
    """Returns a Delta offset as a comparable pair of version and index."""
    return int(offset["reservoirVersion"]), int(offset["index"])


def is_kafka(source: Any) -> bool:
    """Returns whether the source in a commit's metadata is Kafka."""
    return isinstance(source, dict) and "topics" in source


def cluster_words(source: Any) -> str:
    """Returns the Kafka cluster that a commit's metadata names, to follow a topic; empty for the default one."""
    return f" of cluster '{source['cluster']}'" if is_kafka(source) and source.get("cluster") else ""


def describe(source: Any, begin: Any, end: Any) -> str:
    """Describes in one line what a batch read."""
    if end is None:
        return "nothing"
    if is_kafka(source):
        return ", ".join(f"{range_}{cluster_words(source)}" for range_ in kafka_ranges(begin, end)) or "nothing"
    if isinstance(end, dict) and "logOffset" in end:
        first = 0 if begin is None else int(begin["logOffset"]) + 1
        return f"files of entries {first} to {end['logOffset']}" if first <= int(end["logOffset"]) else "nothing"
    table = (source or {}).get("table", "its source")
    start = "its beginning" if begin is None else _start_words(begin)
    return f"{table} from {start} to {_end_words(end)}"


def _start_words(offset: Any) -> str:
    version, index = delta_position(offset)
    if index < 0:
        return f"version {version}"
    return f"version {version} behind file {index}"


def _end_words(offset: Any) -> str:
    version, index = delta_position(offset)
    if index < 0:
        return f"the end of version {version - 1}"
    return f"file {index} of {'the snapshot of ' if offset.get('isStartingVersion') else ''}version {version}"


def describe_gap(end: Any, start: Any) -> str | None:
    """Describes how a batch that begins at `start` does not continue the previous one, which ended at `end`.

    Returns None where it does.
    """
    if end == start or end is None or start is None:
        return None if end == start else f"one ends at {end}, the next begins at {start}"
    if "reservoirVersion" in end and "reservoirVersion" in start:
        end_place, start_place = delta_position(end), delta_position(start)
        if end.get("reservoirId") != start.get("reservoirId"):
            return "the source table is another one"
        if end_place == start_place:
            return None
        kind = "read twice" if start_place < end_place else "never read"
        return (
            f"{min(end_place, start_place)} to {max(end_place, start_place)} (version, index) of the source are {kind}"
        )
    if "logOffset" in end and "logOffset" in start:
        if int(end["logOffset"]) == int(start["logOffset"]):
            return None
        return f"one ends at entry {end['logOffset']} of the files, the next begins behind {start['logOffset']}"
    sentences = [f"{range_} are never read" for range_ in kafka_ranges(end, start) if range_.count > 0]
    sentences += [
        f"{OffsetRange(range_.topic, range_.partition, range_.after, range_.first)} are read twice"
        for range_ in kafka_ranges(end, start)
        if range_.count < 0
    ]
    return "; ".join(sentences) or None
