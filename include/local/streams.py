"""What the control database says about the streams, for whoever waits for them."""

from sqlalchemy import Engine, select, update

from include import catalog
from include.control import lease, orders
from include.control.process import Process
from include.control.store import database
from include.control.store.schema import drivers, runs


def clear_failures(engine: Engine) -> None:
    """Who calls `make up` wants the streams now, not after a back-off."""
    with database.transaction(engine) as connection:
        connection.execute(update(runs).values(attempts=0, intended_at=None, failure=None, needs_person=False))


def failed(engine: Engine) -> dict[str, str]:
    """By flow, the sentence it ended with, for those that wait for their next start or for a person."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(runs.c.flow, runs.c.failure).where(runs.c.failure.is_not(None)))
        return {row.flow: row.failure for row in rows}


def missing(engine: Engine) -> list[str]:
    """The flows that are to run and that no living driver holds."""
    with database.reading(engine) as connection:
        held = lease.alive(connection)
        names = catalog.load().flows
        return [name for name in names if name not in held and orders.order(connection, name).state == "running"]


def launched(engine: Engine) -> dict[str, str]:
    """By driver, the process that the supervisor launched last."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(drivers.c.driver, drivers.c.handle).where(drivers.c.handle.is_not(None)))
        return {row.driver: row.handle for row in rows}


def ended(engine: Engine, before: dict[str, str]) -> list[str]:
    """The drivers that were launched since they were `launched(...) == before`, and have ended although some flow of
    theirs is to run.
    """
    declared = catalog.load()
    owners = {declared.flows[name].driver for name in missing(engine)}
    now = {driver: handle for driver, handle in launched(engine).items() if handle != before.get(driver)}
    return sorted(name for name in owners & now.keys() if not Process.from_json(now[name]).is_alive)
