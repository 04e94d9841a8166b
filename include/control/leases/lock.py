"""The lock on a stored table: appends share it, every other writer has it exclusively. It is stored in the holder's
lease. Processes share it only where a late commit fails by itself.

Whoever wants it exclusively announces that first. Nobody new enters then, and it enters once all others have left.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, update

from include.control.leases.lease import window_lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import leases

SHARED, CONDITIONAL, EXCLUSIVE, WAITING = "shared", "conditional", "alone", "wants"


@dataclass(frozen=True)
class LockRequest:
    """The request of the lease `name` to write `table`. alone: exclusively.

    is_conditional: its late commits fail by themselves. It then shares the lock with others of that kind only.
    """

    name: str
    table: str
    alone: bool
    is_conditional: bool = False

    @property
    def mode(self) -> str:
        return EXCLUSIVE if self.alone else CONDITIONAL if self.is_conditional else SHARED


@dataclass(frozen=True)
class Obstacle:
    """The lease `name` at this `epoch`, which blocks a request.

    is_gone: its holder has died, or the lease has expired. It must be removed before anybody may enter.
    """

    name: str
    epoch: int
    holder: Holder
    expires_at: float
    is_gone: bool

    @property
    def lease(self) -> tuple[str, int, float, Holder]:
        """The lease, as `include.control.leases.lease.Sightings` knows it."""
        return self.name, self.epoch, self.expires_at, self.holder


def enter(connection: Connection, request: LockRequest) -> Obstacle | None:
    """Take the lock and return None, or return the obstacle. A blocked exclusive request is announced.

    The caller holds the lease, and repeats the call until it gets the lock.
    """
    database.serialize(connection, request.table)
    now_seconds = database.now(connection)
    own_lease = connection.execute(select(leases).where(leases.c.flow == request.name)).one()
    is_waiting = own_lease.mode == WAITING and own_lease.writes == request.table
    wanted_at = own_lease.wanted_at if is_waiting else now_seconds
    obstacle = _find_obstacle(connection, request, wanted_at, now_seconds)
    if obstacle is None:
        values = {"writes": request.table, "mode": request.mode, "wanted_at": wanted_at}
    elif request.alone:
        values = {"writes": request.table, "mode": WAITING, "wanted_at": wanted_at}
    else:
        return obstacle
    connection.execute(update(leases).where(leases.c.flow == request.name).values(values))
    return obstacle


def release(connection: Connection, name: str) -> None:
    """Release the lock. Harmless if it is not held."""
    released = {"writes": None, "mode": None, "wanted_at": None}
    connection.execute(update(leases).where(leases.c.flow == name).values(released))


def expel(engine: Engine, obstacle: Obstacle, successor: Holder) -> None:
    """Fence a holder that is gone, then expire its lease. Raises Unreachable.

    A process that could not release a lease, because the database was away, expires its own.
    """
    # Outside a transaction: to kill a process may take longer than others can wait for a database lock.
    if obstacle.holder.python != successor.python:
        obstacle.holder.fence()
    is_unchanged = (
        (leases.c.flow == obstacle.name)
        & (leases.c.epoch == obstacle.epoch)
        & (leases.c.expires_at == obstacle.expires_at)
    )
    with database.transaction(engine) as connection:
        connection.execute(update(leases).where(is_unchanged).values(expires_at=0.0))


def _find_obstacle(
    connection: Connection, request: LockRequest, wanted_at: float, now_seconds: float
) -> Obstacle | None:
    others = (leases.c.writes == request.table) & (leases.c.flow != request.name) & (leases.c.expires_at > 0)
    for row in connection.execute(select(leases).where(others).order_by(leases.c.wanted_at)):
        if _is_in_the_way(connection, row, request, wanted_at):
            holder = Holder.from_json(row.holder)
            is_gone = row.expires_at <= now_seconds or holder.is_known_dead
            return Obstacle(row.flow, row.epoch, holder, row.expires_at, is_gone)
    return None


def _is_in_the_way(connection: Connection, other: Row[Any], request: LockRequest, wanted_at: float) -> bool:
    if other.mode in (SHARED, CONDITIONAL):
        return bool(request.mode != other.mode)
    if other.flow == window_lease(request.table) and other.mode == EXCLUSIVE:
        # The process that holds the window may run the table's flow inside it.
        own_holder = connection.execute(select(leases.c.holder).where(leases.c.flow == request.name)).scalar_one()
        return bool(other.holder != own_holder)
    # Among exclusive requests, the earliest one goes first.
    return bool(
        other.mode == EXCLUSIVE or not request.alone or (other.wanted_at, other.flow) < (wanted_at, request.name)
    )
