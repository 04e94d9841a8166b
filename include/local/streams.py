"""The state of the streams in the control database, for commands that wait for them."""

from sqlalchemy import Engine, select, update

from include import catalog
from include.control import lease, orders
from include.control.process import Process
from include.control.store import database
from include.control.store.schema import drivers, runs


def clear_failures(engine: Engine) -> None:
    """Clear failures and back-off times: `make up` starts all streams immediately."""
    with database.transaction(engine) as connection:
        connection.execute(update(runs).values(attempts=0, intended_at=None, failure=None, needs_person=False))


def failed_flows(engine: Engine) -> dict[str, str]:
    """By flow, the sentence of its failure, for flows that wait for a retry or for a person."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(runs.c.flow, runs.c.failure).where(runs.c.failure.is_not(None)))
        return {row.flow: row.failure for row in rows}


def missing_flows(engine: Engine) -> list[str]:
    """The flows that should run, but whose lease no living driver holds."""
    with database.reading(engine) as connection:
        active_leases = lease.alive(connection)
        names = catalog.load().flows
        return [
            name for name in names if name not in active_leases and orders.order(connection, name).state == "running"
        ]


def launched(engine: Engine) -> dict[str, str]:
    """By driver, the handle of the process that the supervisor launched last."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(drivers.c.driver, drivers.c.handle).where(drivers.c.handle.is_not(None)))
        return {row.driver: row.handle for row in rows}


def ended_drivers(engine: Engine, earlier_handles: dict[str, str]) -> list[str]:
    """The drivers that have ended although one of their flows should run.

    Only drivers launched after `earlier_handles`, an earlier result of `launched`, are considered.
    """
    tables = catalog.load()
    expected = {tables.flows[name].driver for name in missing_flows(engine)}
    new_handles = {
        driver: handle for driver, handle in launched(engine).items() if handle != earlier_handles.get(driver)
    }
    return sorted(name for name in expected & new_handles.keys() if not Process.from_json(new_handles[name]).is_alive)
