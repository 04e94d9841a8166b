"""Flows that a person, or the supervisor, has moved to another driver than the one that their table declares."""

from contextlib import suppress
from dataclasses import replace

from sqlalchemy import Connection, Engine, delete, func, select

from include.catalog import Catalog
from include.control.store import database
from include.control.store.schema import audits, placements
from include.errors import SluiceError, UsageError
from include.project.declaration import DRIVER
from include.settings import settings
from include.spec import Flow


def read(connection: Connection) -> dict[str, str]:
    """The driver of each flow that was moved."""
    return {row.flow: row.driver for row in connection.execute(select(placements))}


def place(engine: Engine, tables: Catalog) -> Catalog:
    """The catalog, with the driver that each flow has now. Raises Unreachable."""
    with database.reading(engine) as connection:
        return replace(tables, placements=read(connection))


def place_if_known(tables: Catalog) -> Catalog:
    """The same, or the drivers as declared while the control database does not answer."""
    with suppress(SluiceError):
        return place(database.connect(settings().control_url), tables)
    return tables


def moved_seconds_ago(connection: Connection, within_seconds: float) -> dict[str, float]:
    """By flow, the seconds since it was moved, of those that were moved within so many seconds."""
    now, at = database.now(connection), func.max(audits.c.at)
    is_move = (audits.c.action == "move") & audits.c.has_effect & (audits.c.at >= now - within_seconds)
    rows = connection.execute(select(audits.c.target, at.label("at")).where(is_move).group_by(audits.c.target))
    return {row.target: now - row.at for row in rows}


def move(connection: Connection, flow: Flow, driver: str) -> None:
    """Give the flow to a driver. Back in the declared one, it follows its table's file again."""
    if not DRIVER.fullmatch(driver):
        raise UsageError(f"{driver!r} is no name of a driver: use letters, digits, and . _ - after the first of them")
    if driver == flow.driver:
        connection.execute(delete(placements).where(placements.c.flow == flow.flow))
        return
    statement = database.insert(connection, placements).values(flow=flow.flow, driver=driver)
    connection.execute(statement.on_conflict_do_update(index_elements=["flow"], set_={"driver": driver}))
