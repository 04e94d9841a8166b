"""Compares a table with what its batches read: offsets, quarantine, files, backfilled rows and accepted losses."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow
import pyarrow.compute as compute
from sqlalchemy import select

from include.checkpoints import checkpoint_files, offset_ranges
from include.checkpoints.offset_ranges import OffsetRange, is_kafka
from include.control.store import database
from include.control.store.schema import losses
from include.delta import commit_history, stored_table
from include.delta.delta_log import DeltaLog
from include.errors import LedgerMismatch
from include.flows.batches import BACKFILL, RETRIED, STATES_WITH_ROWS, UNDONE, BatchHistory, BatchRecord
from include.kafka import broker, cluster
from include.lake import locations
from include.ledger.erasures import Erasures, batch_key
from include.settings import settings
from include.spec import Table

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


def check_rows(table: Table, entries: list[BatchRecord]) -> list[str]:
    """Checks that the quarantine holds as many rows of each batch as the batch's commit counts.

    Returns notes. Raises LedgerMismatch.
    """
    stored = stored_table.dataset(table.quarantine)
    batch_columns = stored.to_table(columns=["_flow", "_generation", "_batch"])
    groups = batch_columns.group_by(["_flow", "_generation", "_batch"]).aggregate([([], "count_all")]).to_pylist()
    stored_counts = {(group["_flow"], group["_generation"], group["_batch"]): group["count_all"] for group in groups}
    log = DeltaLog(locations.table_path(table.quarantine))
    active = [commit for commit, is_active in commit_history.commits_with_activity(log) if is_active]
    replayed = sum(_deleted(log, commit.version) for commit in active)
    backfills = [commit.version for commit in active if BACKFILL in commit.metadata or RETRIED in commit.metadata]
    erased = Erasures.of(commit.metadata.get(commit_history.ERASED) for commit in active)
    # A backfill stores the rows of its range under the newest batch.
    missing = sum(rows_added_by_backfill(log, version) for version in backfills)
    entries = [batch for batch in entries if batch.state != UNDONE]
    for batch in entries:
        count = stored_counts.pop((batch.flow, batch.generation, batch.batch), 0)
        count += erased.batches[batch_key(batch.flow, batch.generation, batch.batch)]
        if batch.tally is None or batch.state not in STATES_WITH_ROWS:
            continue
        missing += batch.tally["quarantined"] - count
        if backfills:
            continue
        if count > batch.tally["quarantined"] or (count < batch.tally["quarantined"] and not replayed):
            raise LedgerMismatch(
                f"{batch.name} put {batch.tally['quarantined']:,} rows into {table.quarantine}, which holds {count:,}"
            )
    if missing != replayed and log.versions[0] == 0 and all(batch.state in STATES_WITH_ROWS for batch in entries):
        raise LedgerMismatch(
            f"{table.quarantine} lacks {missing:,} rows, and replays took {replayed:,} out of it",
            about=f"{table.quarantine} lacks {missing - replayed:+}",
        )
    notes = [f"{replayed:,} rows of {table.quarantine} were moved by replays"] if replayed else []
    if erased.rows:
        notes.append(f"{erased.rows:,} rows of {table.quarantine} were erased")
    if backfills:
        notes.append(f"{table.quarantine} was counted as a whole: {len(backfills):,} jobs replaced rows of it")
    # Rows of a batch that was not committed. The next attempt replaces them.
    return notes + [
        f"{count:,} rows in {table.quarantine} are of {key}, not committed" for key, count in stored_counts.items()
    ]


def rows_added_by_backfill(log: DeltaLog, version: int) -> int:
    """Returns how many rows a backfill, or what a replay tried again, added to what the batches count; 0 for any other
    commit.

    After a full refresh, the batches before it do not count any more.
    """
    commit = log.commit(version)
    backfill = commit.metadata.get(BACKFILL) or commit.metadata.get(RETRIED) or {}
    if "rows_before" not in backfill:
        return 0
    return (commit.rows or 0) - (0 if "anew" in backfill else int(backfill["rows_before"]))


def _deleted(log: DeltaLog, version: int) -> int:
    """Returns how many rows a replay removed."""
    if "replay" not in log.commit(version).metadata:
        return 0
    commit_infos = (action.get("commitInfo", {}) for action in log.actions(version, b'"commitInfo"'))
    return sum(
        int((commit_info.get("operationMetrics") or {}).get("numDeletedRows", 0)) for commit_info in commit_infos
    )


def check_files(table: Table) -> list[str]:
    """Checks that the rows of each file are numbered from 0 on. Raises LedgerMismatch for a gap or a repetition."""
    stored = stored_table.dataset(table.name)
    row_numbers = stored.to_table(columns=["_filename", "_index"])
    aggregates = [("_index", "count"), ("_index", "count_distinct"), ("_index", "max")]
    for group in row_numbers.group_by("_filename").aggregate(aggregates).to_pylist():
        count, distinct, expected = group["_index_count"], group["_index_count_distinct"], group["_index_max"] + 1
        if count != distinct:
            raise LedgerMismatch(
                f"{table.name}: {count - distinct:,} rows of file '{group['_filename']}' are there twice"
            )
        # The last rows of a file may have been erased, too, which no row shows.
        if distinct != expected and expected - distinct > _erased_files(table)[group["_filename"]]:
            raise LedgerMismatch(
                f"{table.name}: {expected - distinct:,} rows of file '{group['_filename']}' are missing"
            )
    return []


def _erased_files(table: Table) -> Counter[str]:
    return Erasures.of_log(DeltaLog(locations.table_path(table.name))).files


def initial_offsets(history: BatchHistory, batch: BatchRecord) -> Any:
    """Returns the Kafka offsets at which the first batch of a flow began, as `checkpoint_files.initial_offsets`."""
    generation = history.generations(batch.flow).get(batch.generation)
    return checkpoint_files.initial_offsets(generation.path) if generation else None


def skipped_words(batch: BatchRecord) -> str:
    """Describes a batch that was left out by approval."""
    ranges = offset_ranges.kafka_ranges(batch.source_from, batch.source_to) if is_kafka(batch.source) else []
    count = f"{sum(range_.count for range_ in ranges):,} offsets, " if ranges else ""
    what = offset_ranges.describe(batch.source, batch.source_from, batch.source_to)
    skipped = batch.skipped or {}
    return f"{batch.name} was skipped ({count}{what}): asked for by {skipped.get('who')}, {skipped.get('reason')}"


def accepted_loss_words(batch: BatchRecord) -> str:
    """Describes the loss that was accepted when this batch's generation began; empty for none. Raises Unreachable."""
    is_of_generation = (losses.c.flow == batch.flow) & (losses.c.generation == batch.generation)
    with database.reading(database.connect(settings().control_url)) as connection:
        accepted_losses = connection.execute(select(losses).where(is_of_generation)).all()
    ranges = (
        f"{loss.topic}/{loss.partition} from {loss.first} to before {loss.after or 'its end'}"
        for loss in accepted_losses
    )
    return ", ".join(ranges)
