"""Table files that cannot be used: each has an alarm, and after its correction the stopped flows start again."""

from sqlalchemy import Connection, Engine, select

from include import catalog
from include.catalog import Catalog
from include.control.flows import incidents, orders
from include.control.flows.alarms import AlarmKind
from include.control.flows.incidents import Acknowledgement
from include.control.store import database
from include.control.store.schema import runs
from include.spec import table_of

# Also the error class of a flow without a definition.
INVALID_DEFINITION = AlarmKind.INVALID_DEFINITION


def settle(engine: Engine, tables: Catalog) -> dict[str, Acknowledgement | None]:
    """Store the definitions of valid files, open and end alarms, and start flows that waited for a corrected file.

    Returns the tables with invalid files, each with the acknowledgement of its alarm. Raises Unreachable.
    """
    catalog.delete_obsolete_definitions()
    changed = catalog.store_definitions(tables, [*tables.tables, *tables.steps])
    with database.transaction(engine) as connection:
        for table, reason in tables.warnings.items():
            incidents.begin(connection, table, INVALID_DEFINITION, reason)
        invalid = {INVALID_DEFINITION.target(table) for table in tables.invalid}
        for target in incidents.targets_in_state(connection, INVALID_DEFINITION) - invalid:
            incidents.end(connection, target)
        _start_again(connection, tables, changed)
        acknowledgement_of = incidents.valid_acknowledgements(connection)
    return {table: acknowledgement_of.get(INVALID_DEFINITION.target(table)) for table in tables.invalid}


def _start_again(connection: Connection, tables: Catalog, changed: set[str]) -> None:
    """Start flows that failed without a definition, or permanently, and whose file has changed."""
    failed = connection.execute(select(runs).where(runs.c.failure.is_not(None))).all()
    corrected = [
        row.flow
        for row in failed
        if row.flow in tables.flows
        and (row.error == INVALID_DEFINITION or (row.needs_person and table_of(row.flow) in changed))
    ]
    orders.lock(connection, corrected)
    for flow in corrected:
        orders.clear_failure(connection, flow)
