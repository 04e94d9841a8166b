"""Leases: the right to write, held by a live process, lost when it stops renewing."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, update
from sqlalchemy.dialects import postgresql, sqlite

from include.control import database
from include.control.database import desired, leases
from include.control.process import Holder
from include.errors import LeaseHeld, LeaseLost


@dataclass(frozen=True)
class Lease:
    """What a flow's host got: `epoch` is one above that of every holder before."""

    flow: str
    epoch: int


def acquire(engine: Engine, flows: list[str], holder: Holder, ttl_seconds: float) -> list[Lease]:
    """Take the leases of all `flows` or of none.

    A lease is free when nobody holds it, when it has expired, or when its holder is known to be dead; what is left of
    that holder is ended first, so that it cannot commit any more. Raises LeaseHeld with the first flow somebody else
    holds, and Unreachable.
    """
    with database.transaction(engine) as connection:
        rows = {flow: _free_row(connection, flow) for flow in flows}
        # Before the leases change hands: if this process died in between, nobody would remember the ones before.
        for row in rows.values():
            _end_former(row, holder)
        epochs = {flow: int(row.epoch) + 1 if row else 1 for flow, row in rows.items()}
        now = database.now(connection)
        for flow, epoch in epochs.items():
            _compare_and_set(connection, flow, epoch, holder, now + ttl_seconds)
    return [Lease(flow, epoch) for flow, epoch in epochs.items()]


def _free_row(connection: Connection, flow: str) -> Row[Any] | None:
    """What is stored of a lease that is free. Raises LeaseHeld."""
    row = connection.execute(select(leases).where(leases.c.flow == flow).with_for_update()).one_or_none()
    left_seconds = row.expires_at - database.now(connection) if row else 0
    if row and left_seconds > 0 and not Holder.from_json(row.holder).is_known_dead:
        raise LeaseHeld(
            f"{flow} is already written by {Holder.from_json(row.holder)}, whose lease runs for another "
            f"{left_seconds:.0f} s: stop that driver first, or leave it to its work"
        )
    return row


def _end_former(row: Row[Any] | None, holder: Holder) -> None:
    """Whoever did not give the lease back may be asleep: end it, so that it cannot commit any more."""
    is_released = row is None or row.expires_at == 0
    if row is not None and not is_released and Holder.from_json(row.holder).python != holder.python:
        Holder.from_json(row.holder).fence()


def _compare_and_set(connection: Connection, flow: str, epoch: int, holder: Holder, expires_at: float) -> None:
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    values = {"epoch": epoch, "holder": holder.to_json(), "expires_at": expires_at}
    statement = insert(leases).values(flow=flow, **values)
    changed = connection.execute(
        statement.on_conflict_do_update(index_elements=["flow"], set_=values, where=leases.c.epoch == epoch - 1)
    )
    if changed.rowcount != 1:
        raise LeaseHeld(f"{flow} was taken by another driver at this very moment: leave it to its work")


def renew(connection: Connection, held: list[Lease], ttl_seconds: float) -> None:
    """Hold on for another `ttl_seconds`. Raises LeaseLost where somebody else has taken over."""
    expires_at = database.now(connection) + ttl_seconds
    for lease in held:
        mine = (leases.c.flow == lease.flow) & (leases.c.epoch == lease.epoch) & (leases.c.expires_at > 0)
        if connection.execute(update(leases).where(mine).values(expires_at=expires_at)).rowcount != 1:
            raise LeaseLost(f"{lease.flow} was taken over by another driver (this one held epoch {lease.epoch})")


def release(engine: Engine, held: list[Lease]) -> None:
    """Give back, so that the next holder need not wait. Harmless for a lease that was lost."""
    with database.transaction(engine) as connection:
        for lease in held:
            mine = (leases.c.flow == lease.flow) & (leases.c.epoch == lease.epoch)
            connection.execute(update(leases).where(mine).values(expires_at=0.0))


def wanted(connection: Connection, flow: str) -> str:
    """`running` or `stopped`: what the on-call engineer last asked for."""
    state = connection.execute(select(desired.c.state).where(desired.c.flow == flow)).scalar_one_or_none()
    return state or "running"


def holders(connection: Connection) -> dict[str, Holder]:
    """Who holds a lease that has not expired, by flow."""
    now = database.now(connection)
    rows = connection.execute(select(leases.c.flow, leases.c.holder).where(leases.c.expires_at > now))
    return {row.flow: Holder.from_json(row.holder) for row in rows}
