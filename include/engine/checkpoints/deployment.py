"""Records that a flow starts with a changed definition."""

from sqlalchemy import Engine

from include.checkpoints import checkpoint_files
from include.control import audit
from include.control.jobs import outdated_rows
from include.control.store import database
from include.delta import commit_history, stored_table
from include.delta.backlog import CHANGES_DATA
from include.delta.delta_log import DeltaLog
from include.engine.checkpoints.checkpoint import Checkpoint
from include.flows.batches import BACKFILL
from include.monitoring.outdated_rows import range_of
from include.project.ranges import Slice, from_stored_texts
from include.settings import settings
from include.spec import Table, Upsert


def record(engine: Engine, driver: str, table: Table, flow_checkpoint: Checkpoint) -> None:
    """Records the first batch of the new definition in the audit log, and which stored rows are older.

    Raises Unreachable.
    """
    if flow_checkpoint.deployed_from is None:
        return
    result = f"holds from batch {flow_checkpoint.deployed_from} of generation {flow_checkpoint.generation} on"
    definition = checkpoint_files.owner(flow_checkpoint.path)["definitions"][-1]["rows"]
    is_outdated = flow_checkpoint.has_older_rows and not _recomputes_all(table) and _holds_rows(table)
    recomputed = _recomputed(table, definition) if is_outdated else []
    is_outdated &= Slice() not in recomputed
    range_, has_rows_without_time = range_of(table) if is_outdated else (Slice(), False)
    place = (table.flow, flow_checkpoint.generation, flow_checkpoint.deployed_from)
    with database.transaction(engine) as connection:
        audit.record(connection, f"driver {driver}", "deploy", table.flow, "its definition is new", result)
        outdated_rows.unmark_undone(connection, table.flow, flow_checkpoint.last_commit)
        if is_outdated:
            outdated_rows.mark(connection, *place, range_, definition)
        if is_outdated and has_rows_without_time:
            outdated_rows.mark(connection, *place, Slice(), definition, without_time=True)
        for part in recomputed:
            outdated_rows.unmark_range(connection, table.name, part, {table.flow: definition}, asked_at=0)


def _recomputed(table: Table, definition: str) -> list[Slice]:
    """Returns the ranges that backfills with this definition have replaced, and to which nobody has added since."""
    log, ranges = DeltaLog(settings().table_path(table.name)), list[Slice]()
    for commit, is_active in commit_history.commits_with_activity(log):
        backfill = commit.metadata.get(BACKFILL) or {}
        if is_active and backfill.get("definitions", {}).get(table.flow) == definition:
            ranges.append(from_stored_texts(backfill["from"], backfill["to"]))
        elif is_active and any(log.actions(commit.version, CHANGES_DATA)):
            break
    return ranges


def _holds_rows(table: Table) -> bool:
    return stored_table.open_table(table.name).count() > 0


def _recomputes_all(table: Table) -> bool:
    """Whether each batch recomputes all rows."""
    return table.is_view or (table.is_recomputed and isinstance(table.write, Upsert) and not table.write.recompute)
