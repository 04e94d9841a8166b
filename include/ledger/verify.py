"""Compares what batches read with what they wrote: `sluice verify [TABLE ...]`."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pyarrow.parquet as parquet

from include.checkpoints import offset_ranges
from include.control import accepted_differences
from include.control.store import database
from include.delta import stored_table
from include.delta.delta_log import DeltaLog
from include.errors import FlowBroken, LedgerMismatch, SluiceError
from include.flows import batches, refreshes
from include.flows.batch_files import AppendedFiles
from include.flows.batches import STATES_WITH_ROWS, BatchHistory, BatchRecord, OtherCommit
from include.flows.delta_source import skip_replacements
from include.lake import locations
from include.ledger import erasures, row_outcomes, verify_sources
from include.ledger.erasures import Erasures
from include.ledger.verify_sources import (
    OFFSET_COLUMNS,
    StoredOffsets,
    check_range,
    columns,
    count_difference,
    why_missing,
)
from include.settings import settings
from include.spec import Debezium, Delta, Flow, Table


def check_batch(table: Table, batch: BatchRecord) -> None:
    """Checks that each kept change of a batch has an outcome, and that Delta counted the same. Raises LedgerMismatch.

    A batch of an earlier release does not count outcomes.
    """
    outcomes = row_outcomes.of(batch.tally, batch.merged)
    if outcomes is None or batch.tally is None:
        return
    if sum(outcomes.values()) != batch.tally["kept"] or min(outcomes.values()) < 0:
        raise LedgerMismatch(
            f"{batch.name} kept {batch.tally['kept']:,} changes, and accounts for others: "
            f"{', '.join(row_outcomes.words(outcomes))}"
        )
    if not table.write.upserts or table.write.is_history:
        # A change of a history may change several rows.
        return
    for name, rows in batch.merged.items():
        # A truncate deletes rows of keys that the batch does not name.
        is_right = rows >= outcomes[name] if name == "deleted" and outcomes["truncates"] else rows == outcomes[name]
        if not is_right:
            raise LedgerMismatch(
                f"{batch.name} says that it {name} {outcomes[name]:,} rows, and version {batch.version} says {rows:,}"
            )


def check_tombstones(flow: Table, source: Delta, flow_batches: list[BatchRecord]) -> list[str]:
    """Checks that no batch counts more tombstones than its source has records without a value. Raises LedgerMismatch.

    Whatever else changes nothing must not pass as one. Batches whose files are gone are not checked.
    """
    if not isinstance(flow.parse, Debezium) or any(step.transform for step in (flow, *flow.steps)):
        return []
    appends = AppendedFiles(DeltaLog(locations.table_path(source.table)), source)
    for batch in flow_batches:
        tombstones = (batch.tally or {}).get("changes", {}).get("tombstones", 0)
        if not tombstones:
            continue
        try:
            counts = [_count_nulls(source.table, file.path, flow.parse.column) for file in appends.of(batch)]
        except (FlowBroken, FileNotFoundError):
            continue
        if None not in counts and tombstones > (empty := sum(filter(None, counts))):
            raise LedgerMismatch(
                f"{batch.name} counts {tombstones:,} tombstones, and {source.table} holds {empty:,} records without a "
                f"value of that batch"
            )
    return []


def _count_nulls(table: str, file: str, column: str) -> int | None:
    """Counts NULL in a column of a data file, by the footer of the file; None if that does not say it."""
    with stored_table.file_system(table).open_input_file(file) as content:
        footer = parquet.ParquetFile(content).metadata
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        columns = [group.column(number) for group in groups for number in range(group.num_columns)]
        statistics = [chunk.statistics for chunk in columns if chunk.path_in_schema == column]
    counts = [each.null_count if each is not None and each.has_null_count else None for each in statistics]
    return None if None in counts else sum(filter(None, counts))


def check_total(history: BatchHistory, entries: list[BatchRecord], others: list[OtherCommit]) -> Iterator[str]:
    """Checks that the table holds as many rows as its commits inserted without those that they deleted. Yields notes.

    Raises LedgerMismatch. The log begins with version 0, and only flows and jobs wrote to the table.
    """
    log, name = history.log, history.table.name
    written = [batch for batch in entries if batch.state in STATES_WITH_ROWS]
    if uncounted := sum("changes" not in (batch.tally or {}) for batch in written):
        yield f"{name}: its total was not compared with its batches, as {uncounted:,} of them do not count outcomes"
        return
    active = [log.commit(commit.version) for commit in others if not commit.is_undone]
    merged = [*(batch.merged for batch in written), *(commit.merged for commit in active)]
    expected = sum(rows.get("inserted", 0) - rows.get("deleted", 0) for rows in merged)
    expected += sum(verify_sources.rows_added_by_backfill(log, commit.version) for commit in active)
    expected -= _erasures(others).rows
    live = [file.rows for file in log.state.live]
    if None in live:
        yield f"{name}: its total was not compared with its batches, as a file does not say its rows"
    elif (total := sum(filter(None, live))) != expected:
        raise LedgerMismatch(
            f"{name} holds {total:,} rows, and its commits inserted {expected:,} more than they deleted",
            about=f"{name} rows {total - expected:+}",
        )


@dataclass
class Verification:
    """A table whose rows all add up.

    ranges: the Kafka offset ranges that were counted record by record. refreshes: those of a materialized view.
    notes: explained differences, and checks that were not possible, with the reason.
    """

    table: str
    batches: int = 0
    ranges: int = 0
    refreshes: int = 0
    notes: list[str] = field(default_factory=list)


def verify(table: Table) -> Verification:
    """Verifies a stored table. Raises LedgerMismatch for differences that nobody has accepted, and Unreachable and
    FlowBroken.
    """
    verification, found = Verification(table.name), list[LedgerMismatch]()
    if table.is_view:
        verification.refreshes = len(list(refreshes.of_view(table.name)))
    for check in _checks_of_view(table) if table.is_view else _checks(table, verification):
        try:
            verification.notes += check()
        except LedgerMismatch as difference:
            found.append(difference)
        except SluiceError:
            # What was found counts more than what cannot be read now.
            if not found:
                raise
    accepted = accepted_differences.of_table(database.connect(settings().control_url), table.name) if found else {}
    verification.notes += [f"{one} ({accepted[one.key]})" for one in found if one.key in accepted]
    if left := tuple(difference for difference in found if difference.key not in accepted):
        raise LedgerMismatch("\n".join(map(str, left)), differences=left)
    return verification


Check = Callable[[], Iterable[str]]


def _checks_of_view(table: Table) -> Iterator[Check]:
    yield lambda: refreshes.verify(table.name)


def _checks(table: Table, verification: Verification) -> Iterator[Check]:
    """Yields the checks of a table with flows. Each returns notes, and raises LedgerMismatch."""
    history = BatchHistory(table)
    newest_first = list(history.entries())
    entries = [entry for entry in reversed(newest_first) if isinstance(entry, BatchRecord)]
    others = [entry for entry in newest_first if isinstance(entry, OtherCommit)]
    written = [batch for batch in entries if batch.state in STATES_WITH_ROWS]
    verification.batches = len(written)
    yield from (partial(_check_state, table, entry) for entry in entries)
    yield lambda: erasures.notes(table.name, _erasures(others), written)
    for flow in dict.fromkeys(batch.flow for batch in entries):
        flow_batches = [batch for batch in written if batch.flow == flow]
        declared = next((table_flow for table_flow in table.flows if table_flow.flow == flow), None)
        yield partial(_check_order, history, flow_batches)
        yield from (partial(_check_row_counts, table, batch) for batch in flow_batches)
        if declared is None:
            yield lambda flow=flow: [f"{flow} is declared no more: what it read is not counted again"]  # type: ignore[misc]
        elif declared.source.reads_table:
            yield partial(_check_source_rows, declared, declared.source_as(Delta), flow_batches)
            yield partial(check_tombstones, declared, declared.source_as(Delta), flow_batches)
    if all(flow.source.reads_topics for flow in table.flows):
        yield partial(_check_records, history, written, others, verification)
    elif table.reads_files:
        yield partial(verify_sources.check_files, table)
    if table.write.appends or table.merges_changes:
        yield partial(_check_total, history, entries, others)
    if locations.is_stored(table.quarantine) and not table.reads_files:
        yield partial(verify_sources.check_rows, table, entries)


def _check_state(table: Table, entry: BatchRecord) -> Iterator[str]:
    if entry.state in (batches.MISSING, batches.DUPLICATED):
        fault = "has no commit in the table's log" if entry.state == batches.MISSING else "was committed twice"
        raise LedgerMismatch(f"{entry.name} {fault}: see inspect {table.name}")
    if entry.has_lost_stamp:
        yield (
            f"version {entry.version} lost its metadata, and is {entry.name} by its transaction and its checkpoint: "
            f"its rows were not counted by rule"
        )
    if entry.skipped and entry.state in STATES_WITH_ROWS:
        yield verify_sources.skipped_words(entry)


def _check_order(history: BatchHistory, written: list[BatchRecord]) -> Iterator[str]:
    """Checks that each batch begins where the previous one ended, and that a restart continues there.

    Yields notes on gaps that have an explanation. Raises LedgerMismatch for other gaps.
    """
    for batch, following in zip(written, written[1:], strict=False):
        is_files = isinstance(batch.source_to, dict) and "logOffset" in batch.source_to
        if batch.generation != following.generation and is_files:
            continue
        gap = offset_ranges.describe_gap(batch.source_to, following.source_from)
        if gap is None:
            continue
        if batch.generation != following.generation and _follows_replacement(batch, following):
            yield (
                f"{following.name} goes on where its source was backfilled or rewound behind what {batch.name} had read"
            )
            continue
        if batch.generation != following.generation and (loss := verify_sources.accepted_loss_words(following)):
            yield f"{following.name} goes on behind a loss that was accepted: {loss}"
            continue
        raise LedgerMismatch(f"{following.name} does not begin where {batch.name} ended: {gap}")
    if written and (generation := history.generations(written[-1].flow).get(written[-1].generation)):
        newest_batch = max((batch.batch for batch in written if batch.generation == written[-1].generation), default=-1)
        is_newest = written[-1].generation == max(history.generations(written[-1].flow))
        if is_newest and generation.done > newest_batch:
            raise LedgerMismatch(
                f"{written[-1].flow}: its checkpoint is done up to batch {generation.done}, and the table's last one "
                f"is {written[-1].name}: a start would leave out what lies between"
            )


def _follows_replacement(batch: BatchRecord, following: BatchRecord) -> bool:
    source_identity = batch.source or {}
    if "table" not in source_identity or batch.source != following.source or following.source_from is None:
        return False
    source = Delta(source_identity["table"], changes=source_identity.get("changes", False))
    # A later replacement did not exist yet when the following batch was planned.
    resumed_at = skip_replacements(batch.source_to, source, before=following.source_from["reservoirVersion"])
    return offset_ranges.describe_gap(resumed_at, following.source_from) is None


def _check_row_counts(table: Table, batch: BatchRecord) -> Iterable[str]:
    counts = batch.tally
    if counts is None:
        return ()
    # The rows that a merge writes are not those that it reads.
    written = counts["kept"] if batch.rows is None or table.merges_changes else batch.rows
    if counts["read"] != counts["kept"] + counts["quarantined"] + counts["dropped"]:
        raise LedgerMismatch(f"{batch.name} read {counts['read']:,} rows, and accounts for others: {counts}")
    check_batch(table, batch)
    duplicates = counts["kept"] - written
    may_repeat = bool(table.write.unique)
    if duplicates < 0 or (duplicates and not may_repeat):
        raise LedgerMismatch(
            f"{batch.name} kept {counts['kept']:,} rows, and version {batch.version} wrote {written:,}"
        )
    return ()


def _check_source_rows(flow: Flow, source: Delta, flow_batches: list[BatchRecord]) -> Iterator[str]:
    """Checks that the files of each batch hold as many rows as the batch read. Yields notes.

    Raises LedgerMismatch for a difference that no transform explains.
    """
    appends = AppendedFiles(DeltaLog(locations.table_path(source.table)), source)
    # Batches whose files are unknown, counted by reason, so that each reason gives one note.
    skipped: dict[str, int] = {}
    transformed = 0
    for batch in flow_batches:
        if batch.tally is None:
            continue
        try:
            counts = [file.rows for file in appends.of(batch)]
        except FlowBroken as error:
            skipped[str(error)] = skipped.get(str(error), 0) + 1
            continue
        stored = sum(count for count in counts if count is not None)
        if None in counts or stored == batch.tally["read"]:
            continue
        if not any(step.transform for step in (flow, *flow.steps)):
            what = offset_ranges.describe(batch.source, batch.source_from, batch.source_to)
            raise LedgerMismatch(f"{batch.name} read {batch.tally['read']:,} rows, and {what} holds {stored:,}")
        transformed += 1
    yield from (f"{flow.flow}, {count:,} batches: {why}" for why, count in skipped.items())
    if transformed:
        yield f"{flow.flow}: in {transformed:,} batches its transform makes more or fewer rows than it is given"


def _check_records(
    history: BatchHistory, written: list[BatchRecord], others: list[OtherCommit], verification: Verification
) -> Iterator[str]:
    """Checks that the table holds each Kafka record of the ranges that were read, once. Yields notes."""
    table = history.table
    if not set(OFFSET_COLUMNS) <= columns(table.name) or any(flow.transform for flow in table.flows):
        yield f"{table.name} does not keep each record as it came: only its totals were counted"
        return
    arrived, expected = StoredOffsets(table.name), 0
    quarantined = StoredOffsets(table.quarantine) if locations.is_stored(table.quarantine) else None
    erased = _erasures(others)
    empty_offsets: dict[tuple[str | None, str], int] = {}
    clusters = {flow.flow: flow.source.cluster for flow in table.flows}
    for batch in written:
        name = clusters.get(batch.flow)
        first_offset = batch.source_from
        if first_offset is None:
            first_offset = verify_sources.initial_offsets(history, batch)
        for offset_range in offset_ranges.kafka_ranges(first_offset, batch.source_to):
            stored_offsets = arrived.within(offset_range)
            elsewhere = set(quarantined.within(offset_range)) if quarantined else set()
            elsewhere |= erased.within(offset_range) | erasures.suppressed_within(batch, offset_range)
            if batch.skipped:
                elsewhere |= set(range(offset_range.first, offset_range.after)) - set(stored_offsets)
            if missing := check_range(name, batch.name, offset_range, stored_offsets, elsewhere):
                topic = (name, offset_range.topic)
                empty_offsets[topic] = empty_offsets.get(topic, 0) + missing
            expected += len(stored_offsets)
            verification.ranges += 1
    yield from (why_missing(*topic, count) for topic, count in empty_offsets.items())
    if history.log.versions[0] == 0 and not any(commit.kind == "foreign" for commit in others):
        for difference in count_difference(table.name, arrived.count, expected):
            raise LedgerMismatch(difference, about=f"{table.name} records {arrived.count - expected:+}")


def _check_total(history: BatchHistory, entries: list[BatchRecord], others: list[OtherCommit]) -> Iterator[str]:
    """Checks that the table holds as many rows as its commits wrote. Yields notes."""
    log, name = history.log, history.table.name
    foreign = [commit for commit in others if commit.kind == "foreign" and not commit.is_undone]
    if log.versions[0] > 0 or foreign:
        why = (
            f"its log begins with version {log.versions[0]}" if log.versions[0] else "others than its flows wrote to it"
        )
        yield f"{name}: its total was not compared with its batches, as {why}"
        return
    if history.table.merges_changes:
        yield from check_total(history, entries, others)
        return
    live = [file.rows for file in log.state.live]
    written = [batch.rows for batch in entries if batch.state in STATES_WITH_ROWS]
    replays = [log.commit(commit.version).rows for commit in others if commit.kind == "replay" and not commit.is_undone]
    if None in live or None in written or None in replays:
        yield f"{name}: its total was not compared with its batches, as a commit does not say its rows"
        return
    added_by_backfills = sum(
        verify_sources.rows_added_by_backfill(log, commit.version) for commit in others if not commit.is_undone
    )
    total, expected = sum(filter(None, live)), sum(filter(None, [*written, *replays])) + added_by_backfills
    expected -= _erasures(others).rows
    if total != expected:
        raise LedgerMismatch(
            f"{name} holds {total:,} rows, and its commits wrote {expected:,}",
            about=f"{name} rows {total - expected:+}",
        )


def _erasures(others: list[OtherCommit]) -> Erasures:
    return Erasures.of(commit.erased for commit in others if not commit.is_undone)


def lines(verification: Verification) -> list[str]:
    """Describes the result for people, with one line for each note."""
    counted = f", {verification.ranges:,} ranges of Kafka counted record by record" if verification.ranges else ""
    what = f"{verification.refreshes:,} refreshes" if verification.refreshes else f"{verification.batches:,} batches"
    head = f"{verification.table}: {what}, every row accounted for{counted}"
    return [head, *(f"  {note}" for note in verification.notes)]
