"""The Kafka records that a table holds, offset by offset, against what its batches say they read."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow  # type: ignore[import-untyped]
import pyarrow.compute as compute  # type: ignore[import-untyped]
from deltalake import DeltaTable

from include.errors import Unbalanced
from include.readers import kafka_broker, stored_rows
from include.readers.offset_ranges import Range
from include.settings import settings

PLACE = ("topic", "partition", "offset")


def columns(table: str) -> set[str]:
    """Of a stored table."""
    return {one.name for one in DeltaTable(str(settings().table_path(table))).schema().fields}


@dataclass
class Arrived:
    """A stored table that has the columns topic, partition and offset. Reading these takes 8 bytes of memory a row."""

    table: str

    @cached_property
    def _offsets(self) -> dict[tuple[str, int], Sequence[int]]:
        """In order, by topic and partition."""
        stored = stored_rows.dataset(self.table)
        rows = stored.to_table(columns=list(PLACE)).sort_by("offset")
        found: dict[tuple[str, int], Sequence[int]] = {}
        for group in rows.group_by(["topic", "partition"]).aggregate([]).to_pylist():
            topic, partition = group["topic"], group["partition"]
            own = compute.and_(compute.equal(rows["topic"], topic), compute.equal(rows["partition"], partition))
            column = rows.filter(own)["offset"].cast(pyarrow.int64()).combine_chunks()
            # Plain numbers where they lie, without an object for each.
            found[topic, partition] = memoryview(column.buffers()[1]).cast("q")[: len(column)]
        return found

    @property
    def count(self) -> int:
        return sum(len(offsets) for offsets in self._offsets.values())

    def within(self, span: Range) -> Sequence[int]:
        """The offsets of this range that it holds, in order, each as often as it does."""
        offsets = self._offsets.get((span.topic, span.partition), ())
        return offsets[bisect_left(offsets, span.first) : bisect_left(offsets, span.after)]


def check(who: str, span: Range, held: Sequence[int]) -> int:
    """How many offsets of the range hold no record, as compaction and transactions leave them.

    who: the batch. held: as `Arrived.within`. Raises Unbalanced for a row too many or too few, and Unreachable where
    rows are missing and nobody can be asked whether the topic has them.
    """
    doubled = next((one for one, other in zip(held, held[1:], strict=False) if one == other), None)
    if doubled is not None:
        raise Unbalanced(f"{who}: offset {doubled} of {span.topic}/{span.partition} is in the table more than once")
    missing = set(range(span.first, span.after)) - set(held) if len(held) < span.count else set()
    if missing:
        # What retention has deleted since can be asked for no more; what it took was not there to be asked, either.
        asked = kafka_broker.records(
            settings().kafka, span.topic, {span.partition: (min(missing), span.after - 1)}, only_committed=True
        )
        lost = missing & {record.offset for record in asked[span.partition]}
        if lost:
            raise Unbalanced(
                f"{who}: {len(lost):,} of {span.count:,} records of {span} are missing, the first at offset {min(lost)}"
            )
    return len(missing)


def why_missing(topic: str, count: int) -> str:
    """What a range without some of its records is like. Raises Unreachable."""
    policy = kafka_broker.Topics(settings().kafka).configuration(topic)["cleanup.policy"]
    left = "compaction or transactions" if "compact" in policy else "marks of transactions and what they aborted"
    return f"{count:,} offsets of topic {topic} (cleanup.policy {policy}) hold no record: {left}"


def unaccounted(table: str, count: int, told: int) -> Iterator[str]:
    """Rows that no batch tells of."""
    if count != told:
        yield f"{table} holds {count:,} records, and its batches read {told:,}"
