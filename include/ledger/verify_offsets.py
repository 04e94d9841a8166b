"""Compares the Kafka offsets that a table holds with the offsets that its batches read."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow
import pyarrow.compute as compute

from include.checkpoints.offset_ranges import OffsetRange
from include.delta import stored_table
from include.errors import LedgerMismatch
from include.kafka import broker, cluster

OFFSET_COLUMNS = ("topic", "partition", "offset")


def columns(table: str) -> set[str]:
    """Returns the column names of a stored table."""
    return {column.name for column in stored_table.open_table(table).schema().fields}


@dataclass
class StoredOffsets:
    """The Kafka offsets in a stored table with the columns topic, partition and offset.

    Reading them takes 8 bytes of memory for each row.
    """

    table: str

    @cached_property
    def _offsets(self) -> dict[tuple[str, int], Sequence[int]]:
        """The sorted offsets of each topic and partition."""
        stored = stored_table.dataset(self.table)
        rows = stored.to_table(columns=list(OFFSET_COLUMNS)).sort_by("offset")
        offsets: dict[tuple[str, int], Sequence[int]] = {}
        for group in rows.group_by(["topic", "partition"]).aggregate([]).to_pylist():
            topic, partition = group["topic"], group["partition"]
            is_in_partition = compute.and_(
                compute.equal(rows["topic"], topic), compute.equal(rows["partition"], partition)
            )
            column = rows.filter(is_in_partition)["offset"].cast(pyarrow.int64()).combine_chunks()
            # A memoryview avoids a Python object for each offset.
            offsets[topic, partition] = memoryview(column.buffers()[1]).cast("q")[: len(column)]
        return offsets

    @property
    def count(self) -> int:
        return sum(len(offsets) for offsets in self._offsets.values())

    def within(self, range_: OffsetRange) -> Sequence[int]:
        """Returns the offsets that the table holds in this range, sorted, with repetitions."""
        offsets = self._offsets.get((range_.topic, range_.partition), ())
        return offsets[bisect_left(offsets, range_.first) : bisect_left(offsets, range_.after)]


def check_range(
    cluster_name: str | None, batch_name: str, range_: OffsetRange, stored_offsets: Sequence[int], elsewhere: set[int]
) -> int:
    """Returns how many offsets of the range hold no record, as after compaction and transactions.

    cluster_name: the Kafka cluster. batch_name: for messages. stored_offsets: the result of `StoredOffsets.within`.
    elsewhere: offsets that the table need not hold, because they are in its quarantine or were left out by approval.
    Raises LedgerMismatch for a missing or repeated row, and Unreachable where Kafka does not answer about missing ones.
    """
    repeated = next(
        (offset for offset, following in zip(stored_offsets, stored_offsets[1:], strict=False) if offset == following),
        None,
    )
    if repeated is not None:
        raise LedgerMismatch(
            f"{batch_name}: offset {repeated} of {range_.topic}/{range_.partition} is in the table more than once"
        )
    missing = (
        set(range(range_.first, range_.after)) - set(stored_offsets) - elsewhere
        if len(stored_offsets) < range_.count
        else set()
    )
    if missing:
        # Records that retention has deleted since count as offsets without a record.
        in_topic = broker.read(
            cluster.named(cluster_name),
            range_.topic,
            {range_.partition: (min(missing), range_.after - 1)},
            only_committed=True,
        )
        lost = missing & {record.offset for record in in_topic[range_.partition]}
        if lost:
            raise LedgerMismatch(
                f"{batch_name}: {len(lost):,} of {range_.count:,} records of {range_} are missing, "
                f"the first at offset {min(lost)}"
            )
    return len(missing)


def why_missing(cluster_name: str | None, topic: str, count: int) -> str:
    """Explains why a topic has offsets without a record. Raises Unreachable."""
    policy = broker.Topics(cluster.named(cluster_name)).configuration(topic)["cleanup.policy"]
    reason = "compaction or transactions" if "compact" in policy else "marks of transactions and what they aborted"
    return f"{count:,} offsets of topic {topic} (cleanup.policy {policy}) hold no record: {reason}"


def count_difference(table: str, count: int, expected: int) -> Iterator[str]:
    """Yields a sentence where the table holds another number of records than its batches read."""
    if count != expected:
        yield f"{table} holds {count:,} records, and its batches read {expected:,}"
