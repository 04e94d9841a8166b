"""Records that a flow starts with a changed definition."""

from sqlalchemy import Engine

from include.control import commands
from include.control.jobs import outdated_rows
from include.control.store import database
from include.engine.checkpoints.checkpoint import Checkpoint
from include.monitoring.outdated_rows import range_of
from include.readers import stored_table
from include.spec import Table, Upsert


def record(engine: Engine, driver: str, table: Table, flow_checkpoint: Checkpoint) -> None:
    """Records the first batch of the new definition in the audit log, and which stored rows are older.

    Raises Unreachable.
    """
    if flow_checkpoint.deployed_from is None:
        return
    result = f"holds from batch {flow_checkpoint.deployed_from} of generation {flow_checkpoint.generation} on"
    is_outdated = flow_checkpoint.has_older_rows and not _recomputes_all(table) and _holds_rows(table)
    range_ = range_of(table) if is_outdated else None
    with database.transaction(engine) as connection:
        commands.audit(connection, f"driver {driver}", "deploy", table.flow, "its definition is new", result)
        outdated_rows.unmark_undone(connection, table.flow, flow_checkpoint.last_commit)
        if range_ is not None:
            outdated_rows.mark(
                connection, table.flow, flow_checkpoint.generation, flow_checkpoint.deployed_from, range_
            )


def _holds_rows(table: Table) -> bool:
    return stored_table.open_table(table.name).count() > 0


def _recomputes_all(table: Table) -> bool:
    """Whether each batch recomputes all rows."""
    return table.is_view or (table.is_recomputed and isinstance(table.write, Upsert) and not table.write.recompute)
