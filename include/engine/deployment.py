"""What is remembered where a flow starts with another definition than before."""

from sqlalchemy import Engine

from include.control import commands, database, outdated
from include.engine.checkpoint import Checkpoint
from include.ledger.outdated import range_of
from include.spec import Append, Table, Upsert


def record(engine: Engine, driver: str, table: Table, claimed: Checkpoint) -> None:
    """From which batch on it holds, in the audit; and which rows are of an earlier one. Raises Unreachable."""
    if claimed.deployed_from is None:
        return
    result = f"holds from batch {claimed.deployed_from} of generation {claimed.generation} on"
    is_outdated = claimed.has_older_rows and not _recomputes_all(table)
    rows = range_of(table) if is_outdated else None
    with database.transaction(engine) as connection:
        commands.record(connection, f"driver {driver}", "deploy", table.flow, "its definition is new", result)
        if rows is not None:
            outdated.mark(connection, table.flow, claimed.generation, claimed.deployed_from, rows)
        elif claimed.is_as_before:
            outdated.forget(connection, table.flow)


def _recomputes_all(table: Table) -> bool:
    """Whether each batch makes all rows again."""
    return not isinstance(table.write, Append) and not (isinstance(table.write, Upsert) and table.write.recompute)
