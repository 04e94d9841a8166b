"""The lock on a stored table: appends share it, everything else has it alone. It stands in its holder's lease.

Whoever wants to be alone says so first: nobody new gets in, and once those inside have left, its turn has come.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, update

from include.control.lease import of_window
from include.control.process import Holder
from include.control.store import database
from include.control.store.schema import leases

SHARED, ALONE, WANTS = "shared", "alone", "wants"


@dataclass(frozen=True)
class LockRequest:
    """A wish to write `table`, by the holder of the lease `name`. alone: nobody else may write it meanwhile."""

    name: str
    table: str
    alone: bool


@dataclass(frozen=True)
class Obstacle:
    """Who keeps an entry waiting: the lease `name` at this `epoch`.

    is_gone: its holder has died, or its lease has run out; it must be removed before anybody may enter.
    """

    name: str
    epoch: int
    holder: Holder
    expires_at: float
    is_gone: bool


def enter(connection: Connection, entry: LockRequest) -> Obstacle | None:
    """Take the lock and return None, or say who is in the way; then a wish to be alone is announced.

    The caller holds the lease, and asks again until its turn has come.
    """
    database.serialize(connection, entry.table)
    now = database.now(connection)
    mine = connection.execute(select(leases).where(leases.c.flow == entry.name)).one()
    waits = mine.mode == WANTS and mine.writes == entry.table
    since = mine.wanted_at if waits else now
    obstacle = _obstacle(connection, entry, since, now)
    if obstacle is None:
        values = {"writes": entry.table, "mode": ALONE if entry.alone else SHARED, "wanted_at": since}
    elif entry.alone:
        values = {"writes": entry.table, "mode": WANTS, "wanted_at": since}
    else:
        return obstacle
    connection.execute(update(leases).where(leases.c.flow == entry.name).values(values))
    return obstacle


def leave(connection: Connection, name: str) -> None:
    """Let others in. Harmless where nothing is held."""
    nothing = {"writes": None, "mode": None, "wanted_at": None}
    connection.execute(update(leases).where(leases.c.flow == name).values(nothing))


def remove(engine: Engine, gone: Obstacle) -> None:
    """End what is left of a holder that is gone, then take its lease from it. Raises Unreachable."""
    # In no transaction: ending a process may take longer than others can wait for a lock.
    gone.holder.fence()
    same = (leases.c.flow == gone.name) & (leases.c.epoch == gone.epoch) & (leases.c.expires_at == gone.expires_at)
    with database.transaction(engine) as connection:
        connection.execute(update(leases).where(same).values(expires_at=0.0))


def _obstacle(connection: Connection, entry: LockRequest, since: float, now: float) -> Obstacle | None:
    others = (leases.c.writes == entry.table) & (leases.c.flow != entry.name) & (leases.c.expires_at > 0)
    for row in connection.execute(select(leases).where(others).order_by(leases.c.wanted_at)):
        if _is_in_the_way(connection, row, entry, since):
            holder = Holder.from_json(row.holder)
            is_gone = row.expires_at <= now or holder.is_known_dead
            return Obstacle(row.flow, row.epoch, holder, row.expires_at, is_gone)
    return None


def _is_in_the_way(connection: Connection, other: Row[Any], entry: LockRequest, since: float) -> bool:
    if other.mode == SHARED:
        return entry.alone
    if other.flow == of_window(entry.table) and other.mode == ALONE:
        # The window's own process may run the table's flow in it.
        mine = connection.execute(select(leases.c.holder).where(leases.c.flow == entry.name)).scalar_one()
        return bool(other.holder != mine)
    # Of several that want to be alone, the one that came first.
    return bool(other.mode == ALONE or not entry.alone or (other.wanted_at, other.flow) < (since, entry.name))
