"""Verifies what merges of changes say about the rows of their table."""

from collections.abc import Iterator

import pyarrow.parquet as parquet

from include.delta import stored_table
from include.delta.delta_log import DeltaLog
from include.errors import FlowBroken, LedgerMismatch
from include.flows.batches import STATES_WITH_ROWS, BatchHistory, BatchRecord, OtherCommit
from include.ledger import change_outcomes, verify_quarantine
from include.ledger.batch_files import AppendedFiles
from include.settings import settings
from include.spec import Debezium, Delta, Table, Upsert


def check_batch(table: Table, batch: BatchRecord) -> None:
    """Checks that each kept change of a batch has an outcome, and that Delta counted the same. Raises LedgerMismatch.

    A batch of an earlier release does not count outcomes.
    """
    outcomes = change_outcomes.of(batch.tally, batch.merged)
    if outcomes is None or batch.tally is None:
        return
    if sum(outcomes.values()) != batch.tally["kept"] or min(outcomes.values()) < 0:
        raise LedgerMismatch(
            f"{batch.name} kept {batch.tally['kept']:,} changes, and accounts for others: "
            f"{', '.join(change_outcomes.words(outcomes))}"
        )
    if not isinstance(table.write, Upsert) or table.write.scd == 2:
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
    appends = AppendedFiles(DeltaLog(settings().table_path(source.table)), source)
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
    expected += sum(verify_quarantine.rows_added_by_backfill(log, commit.version) for commit in active)
    live = [file.rows for file in log.state.live]
    if None in live:
        yield f"{name}: its total was not compared with its batches, as a file does not say its rows"
    elif (total := sum(filter(None, live))) != expected:
        raise LedgerMismatch(
            f"{name} holds {total:,} rows, and its commits inserted {expected:,} more than they deleted",
            about=f"{name} rows {total - expected:+}",
        )
