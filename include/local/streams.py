"""What the control database says about the streams, for whoever waits for them."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, Row, select

from include import catalog
from include.control import database, lease
from include.control.database import launches
from include.control.process import Process


def forget_ended(engine: Engine) -> None:
    """Drop what is remembered of drivers that have ended: who calls `make up` wants them now, not after a back-off."""
    with database.transaction(engine) as connection:
        for driver in _ended(connection.execute(select(launches)).all()):
            connection.execute(launches.delete().where(launches.c.driver == driver))


def ended(engine: Engine) -> dict[str, str]:
    """By driver, why it ended, for those that were launched and are gone."""
    with database.transaction(engine) as connection:
        return _ended(connection.execute(select(launches)).all())


def missing(engine: Engine) -> list[str]:
    """The flows that are to run and that no living driver holds."""
    with database.transaction(engine) as connection:
        held = [flow for flow, holder in lease.holders(connection).items() if not holder.is_known_dead]
        tables = catalog.load().tables
        return [flow for flow in tables if flow not in held and lease.wanted(connection, flow) == "running"]


def _ended(rows: Sequence[Row[Any]]) -> dict[str, str]:
    gone = [row for row in rows if row.process and not Process.from_json(row.process).is_alive]
    return {row.driver: row.failure or "it ended without a word" for row in gone}
