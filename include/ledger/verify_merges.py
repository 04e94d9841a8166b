"""Verifies what merges of changes say about the rows of their table."""

from collections.abc import Iterator

from include.errors import LedgerMismatch
from include.ledger import change_outcomes, verify_quarantine
from include.readers.batches import STATES_WITH_ROWS, BatchHistory, BatchRecord, OtherCommit
from include.spec import Table, Upsert


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
            f"{name} holds {total:,} rows, and its commits inserted {expected:,} more than they deleted"
        )
