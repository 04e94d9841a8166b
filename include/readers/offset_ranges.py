"""What lies between two offsets of a source, in ranges that can be compared, counted and read."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, order=True)
class Range:
    """Offsets from `first` to before `after` of a partition of a topic."""

    topic: str
    partition: int
    first: int
    after: int

    @property
    def count(self) -> int:
        return self.after - self.first

    def __str__(self) -> str:
        said = f"{self.first}" if self.count == 1 else f"{self.first} to {self.after - 1}"
        return f"{self.topic}/{self.partition} {said}"


def of_kafka(begin: Any, end: Any) -> list[Range]:
    """The ranges of a batch that are not empty. A partition without a beginning is read from 0 on, as Spark does."""
    ranges = []
    for topic, partitions in (end or {}).items():
        for partition, after in partitions.items():
            first = (begin or {}).get(topic, {}).get(partition, 0)
            if first != after:
                ranges.append(Range(topic, int(partition), first, after))
    return sorted(ranges)


def joined(ranges: list[Range]) -> list[Range]:
    """The same, with neighbours as one."""
    found: list[Range] = []
    for one in sorted(ranges):
        last = found[-1] if found else None
        if last and (last.topic, last.partition, last.after) == (one.topic, one.partition, one.first):
            found[-1] = Range(one.topic, one.partition, last.first, one.after)
        else:
            found.append(one)
    return found


def place(offset: Any) -> tuple[int, int]:
    """A Delta offset as version and index, which can be compared."""
    return int(offset["reservoirVersion"]), int(offset["index"])


def is_kafka(source: Any) -> bool:
    """Whether a stamp's source is that of topics."""
    return isinstance(source, dict) and "topics" in source


def say(source: Any, begin: Any, end: Any) -> str:
    """What a batch read, in one line."""
    if end is None:
        return "nothing"
    if is_kafka(source):
        return ", ".join(map(str, of_kafka(begin, end))) or "nothing"
    if isinstance(end, dict) and "logOffset" in end:
        first = 0 if begin is None else int(begin["logOffset"]) + 1
        return f"files of entries {first} to {end['logOffset']}" if first <= int(end["logOffset"]) else "nothing"
    table = (source or {}).get("table", "its source")
    since = "its beginning" if begin is None else _after(begin)
    return f"{table} from {since} to {_up_to(end)}"


def _after(offset: Any) -> str:
    version, index = place(offset)
    if index < 0:
        return f"version {version}"
    return f"version {version} behind file {index}"


def _up_to(offset: Any) -> str:
    version, index = place(offset)
    if index < 0:
        return f"the end of version {version - 1}"
    return f"file {index} of {'the snapshot of ' if offset.get('isStartingVersion') else ''}version {version}"


def difference(to: Any, then: Any) -> str | None:
    """How a batch that begins at `then` does not go on where the one before ended; None where it does."""
    if to == then or to is None or then is None:
        return None if to == then else f"one ends at {to}, the next begins at {then}"
    if "reservoirVersion" in to and "reservoirVersion" in then:
        one, other = place(to), place(then)
        if to.get("reservoirId") != then.get("reservoirId"):
            return "the source table is another one"
        if one == other:
            return None
        kind = "read twice" if other < one else "never read"
        return f"{min(one, other)} to {max(one, other)} (version, index) of the source are {kind}"
    if "logOffset" in to and "logOffset" in then:
        if int(to["logOffset"]) == int(then["logOffset"]):
            return None
        return f"one ends at entry {to['logOffset']} of the files, the next begins behind {then['logOffset']}"
    said = [f"{one} are never read" for one in of_kafka(to, then) if one.count > 0]
    said += [
        f"{Range(one.topic, one.partition, one.after, one.first)} are read twice"
        for one in of_kafka(to, then)
        if one.count < 0
    ]
    return "; ".join(said) or None
