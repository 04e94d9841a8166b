"""What is remembered where a flow starts with another definition than before."""

from deltalake import DeltaTable
from sqlalchemy import Engine

from include.control import commands
from include.control.jobs import outdated_rows
from include.control.store import database
from include.engine.checkpoints.checkpoint import Checkpoint
from include.monitoring.outdated_rows import range_of
from include.settings import settings
from include.spec import Append, Table, Upsert


def record(engine: Engine, driver: str, table: Table, claimed: Checkpoint) -> None:
    """From which batch on it holds, in the audit; and which rows are of an earlier one. Raises Unreachable."""
    if claimed.deployed_from is None:
        return
    result = f"holds from batch {claimed.deployed_from} of generation {claimed.generation} on"
    is_outdated = claimed.has_older_rows and not _recomputes_all(table) and _holds_rows(table)
    rows = range_of(table) if is_outdated else None
    with database.transaction(engine) as connection:
        commands.record(connection, f"driver {driver}", "deploy", table.flow, "its definition is new", result)
        outdated_rows.take_back(connection, table.flow, claimed.last_commit)
        if rows is not None:
            outdated_rows.mark(connection, table.flow, claimed.generation, claimed.deployed_from, rows)


def _holds_rows(table: Table) -> bool:
    return DeltaTable(str(settings().table_path(table.name))).count() > 0


def _recomputes_all(table: Table) -> bool:
    """Whether each batch makes all rows again."""
    return not isinstance(table.write, Append) and not (isinstance(table.write, Upsert) and table.write.recompute)
