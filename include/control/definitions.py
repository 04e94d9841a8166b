"""Table files that cannot be used: an alarm for each, and once it is mended a new start for what it has stopped."""

from sqlalchemy import Connection, Engine, select

from include import catalog
from include.catalog import Catalog
from include.control import acknowledgements, commands, incidents, orders
from include.control.acknowledgements import Acknowledgement
from include.control.store import database
from include.control.store.schema import incidents as stored_incidents
from include.control.store.schema import runs
from include.spec import table_of

# The state of such an alarm, and the error of a flow without any definition.
INVALID_DEFINITION = "INVALID DEFINITION"


def settle(engine: Engine, tables: Catalog) -> dict[str, Acknowledgement | None]:
    """Keep the definitions of the files that are right. Open and end alarms. Let flows start that waited for a file.

    Returns the tables whose files are not used, and who has taken that on. Raises Unreachable.
    """
    catalog.forget_deleted()
    changed = catalog.keep(tables, [*tables.tables, *tables.steps])
    with database.transaction(engine) as connection:
        for table, why in tables.warnings.items():
            incidents.begin(connection, incidents.of_definition(table), INVALID_DEFINITION, why)
        is_open = stored_incidents.c.ended_at.is_(None) & stored_incidents.c.target.startswith(incidents.DEFINITION)
        for target in connection.execute(select(stored_incidents.c.target).where(is_open)).scalars().all():
            if target.removeprefix(incidents.DEFINITION) not in tables.invalid:
                incidents.end(connection, target)
        _start_again(connection, tables, changed)
        known = acknowledgements.current(connection)
    return {table: known.get(incidents.of_definition(table)) for table in tables.invalid}


def _start_again(connection: Connection, tables: Catalog, changed: set[str]) -> None:
    """Those that failed for want of a definition, or for good, and whose file is another now."""
    failed = connection.execute(select(runs).where(runs.c.failure.is_not(None))).all()
    mended = [
        row.flow
        for row in failed
        if row.flow in tables.flows
        and (row.error == INVALID_DEFINITION or (row.needs_person and table_of(row.flow) in changed))
    ]
    orders.lock(connection, mended)
    for flow in mended:
        commands.clear_failure(connection, flow)
