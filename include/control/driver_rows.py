"""The stored row of each driver: the intent to launch it, and the restart that was requested."""

from typing import Any

from sqlalchemy import Connection, Row, select

from include.control.store import database
from include.control.store.schema import drivers

NEW = {"ends_epoch": 0, "epoch": 0}


def lock(connection: Connection, driver: str) -> Row[Any]:
    """The driver's row, locked to the end of the transaction, so that two supervisors do not decide at once."""
    row = {"driver": driver, **NEW}
    connection.execute(database.insert(connection, drivers).values(row).on_conflict_do_nothing())
    return connection.execute(select(drivers).where(drivers.c.driver == driver).with_for_update()).one()


def is_restart_due(row: Any, epoch: int) -> bool:
    """Whether a restart was requested that neither its driver nor a launch has carried out yet."""
    return row.ends_at is not None and bool(epoch <= row.ends_epoch)
