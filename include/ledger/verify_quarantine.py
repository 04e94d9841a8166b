"""What verification reads beside a table's own commits: its quarantine, its files, and accepted losses."""

from typing import Any

from sqlalchemy import select

from include.control.store import database
from include.control.store.schema import losses
from include.errors import Unbalanced
from include.readers import active_commits, offset_log, stored_rows
from include.readers.batches import BACKFILL, HELD, UNDONE, BatchHistory, BatchRecord
from include.readers.delta_log import Log
from include.settings import settings
from include.spec import Table


def rows(table: Table, entries: list[BatchRecord]) -> list[str]:
    """Notes on the quarantine, whose rows of each batch are those that its commit counts. Raises Unbalanced."""
    stored = stored_rows.dataset(table.quarantine)
    held = stored.to_table(columns=["_flow", "_generation", "_batch"])
    groups = held.group_by(["_flow", "_generation", "_batch"]).aggregate([([], "count_all")]).to_pylist()
    found = {(one["_flow"], one["_generation"], one["_batch"]): one["count_all"] for one in groups}
    log = Log(settings().table_path(table.quarantine))
    counting = [commit for commit, stands in active_commits.commits(log) if stands]
    replayed = sum(_deleted(log, commit.version) for commit in counting)
    backfills = [commit.version for commit in counting if BACKFILL in commit.metadata]
    # Those of the range stand there under the newest batch by now.
    owed = sum(more_by_backfill(log, version) for version in backfills)
    entries = [one for one in entries if one.state != UNDONE]
    for entry in entries:
        count = found.pop((entry.flow, entry.generation, entry.batch), 0)
        if entry.tally is None or entry.state not in HELD:
            continue
        owed += entry.tally["quarantined"] - count
        if backfills:
            continue
        if count > entry.tally["quarantined"] or (count < entry.tally["quarantined"] and not replayed):
            raise Unbalanced(
                f"{entry.name} put {entry.tally['quarantined']:,} rows into {table.quarantine}, which holds {count:,}"
            )
    if owed != replayed and log.versions[0] == 0 and all(one.state in HELD for one in entries):
        raise Unbalanced(f"{table.quarantine} lacks {owed:,} rows, and replays took {replayed:,} out of it")
    notes = [f"{replayed:,} rows of {table.quarantine} were put back by replays"] if replayed else []
    if backfills:
        notes.append(f"{table.quarantine} was counted as a whole: {len(backfills):,} backfills replaced ranges of it")
    # Of a batch that was tried and not committed: the next try replaces them.
    return notes + [f"{count:,} rows in {table.quarantine} are of {key}, not committed" for key, count in found.items()]


def more_by_backfill(log: Log, version: int) -> int:
    """How many rows more there are since a backfill replaced a range; 0 for any other commit.

    Of those before it that were made anew from the source, no batch is counted any more.
    """
    commit = log.commit(version)
    said = commit.metadata.get(BACKFILL) or {}
    if "rows_before" not in said:
        return 0
    return (commit.rows or 0) - (0 if "anew" in said else int(said["rows_before"]))


def _deleted(log: Log, version: int) -> int:
    """How many rows a replay took out."""
    if "replay" not in log.commit(version).metadata:
        return 0
    said = (one.get("commitInfo", {}) for one in log.actions(version, b'"commitInfo"'))
    return sum(int((one.get("operationMetrics") or {}).get("numDeletedRows", 0)) for one in said)


def files(table: Table) -> None:
    """Raises Unbalanced where a file's rows are not numbered from 0 on without a gap, each number once."""
    stored = stored_rows.dataset(table.name)
    held = stored.to_table(columns=["_filename", "_index"])
    wanted = [("_index", "count"), ("_index", "count_distinct"), ("_index", "max")]
    for one in held.group_by("_filename").aggregate(wanted).to_pylist():
        count, distinct, most = one["_index_count"], one["_index_count_distinct"], one["_index_max"] + 1
        if count != distinct:
            raise Unbalanced(f"{table.name}: {count - distinct:,} rows of file '{one['_filename']}' are there twice")
        if distinct != most:
            raise Unbalanced(f"{table.name}: {most - distinct:,} rows of file '{one['_filename']}' are missing")


def beginning(account: BatchHistory, entry: BatchRecord) -> Any:
    """Where the first batch of a Kafka flow began."""
    generation = account.generations(entry.flow).get(entry.generation)
    return offset_log.begins(generation.path) if generation else None


def accepted(entry: BatchRecord) -> str:
    """What was given up when the generation of this batch began, in words; empty for nothing. Raises Unreachable."""
    own = (losses.c.flow == entry.flow) & (losses.c.generation == entry.generation)
    with database.reading(database.connect(settings().control_url)) as connection:
        found = connection.execute(select(losses).where(own)).all()
    spans = (f"{one.topic}/{one.partition} from {one.first} to before {one.after or 'its end'}" for one in found)
    return ", ".join(spans)
