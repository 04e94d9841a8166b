"""Leases: the right to write, held by a live process, lost when it stops renewing."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, false, select, update

from include.control.process import Holder
from include.control.store import database
from include.control.store.schema import leases
from include.errors import LeaseHeld, LeaseLost


@dataclass(frozen=True, order=True)
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
    return take(engine, make_way(engine, flows, holder), flows, holder, ttl_seconds)


def make_way(engine: Engine, flows: list[str], holder: Holder) -> dict[str, Row[Any]]:
    """The first half of `acquire`, which may take seconds: all `flows` are free, and their former holders have ended.

    Returns what is stored of these leases. Raises as `acquire`, and SluiceError for a holder that cannot be ended.
    """
    found = _free_rows(engine, flows)
    # In no transaction: ending a process may take longer than others can wait for a lock. And before the leases change
    # hands: if this process died in between, nobody would remember the ones before.
    for row in found.values():
        _end_former(row, holder)
    return found


def take(
    engine: Engine, found: dict[str, Row[Any]], flows: list[str], holder: Holder, ttl_seconds: float
) -> list[Lease]:
    """The second half of `acquire`: take the leases as `make_way` found them. Raises LeaseHeld and Unreachable."""
    with database.transaction(engine) as connection:
        expires_at = database.now(connection) + ttl_seconds
        # Whoever locks several rows does so in their order, or two could wait for each other.
        taken = {
            flow: _compare_and_set(connection, flow, found.get(flow), holder, expires_at) for flow in sorted(flows)
        }
    return [taken[flow] for flow in flows]


def _free_rows(engine: Engine, flows: list[str]) -> dict[str, Row[Any]]:
    """What is stored of these leases, all free. Raises LeaseHeld."""
    with database.reading(engine) as connection:
        now = database.now(connection)
        found = {row.flow: row for row in connection.execute(select(leases).where(leases.c.flow.in_(flows)))}
    for row in (found[flow] for flow in flows if flow in found):
        left_seconds = row.expires_at - now
        if left_seconds > 0 and not Holder.from_json(row.holder).is_known_dead:
            raise LeaseHeld(
                f"{row.flow} is already written by {Holder.from_json(row.holder)}, whose lease runs for another "
                f"{left_seconds:.0f} s: stop that driver first, or leave it to its work"
            )
    return found


def _end_former(row: Row[Any], holder: Holder) -> None:
    """Whoever did not give the lease back may be asleep: end it, so that it cannot commit any more."""
    is_released = row.expires_at == 0
    if not is_released and Holder.from_json(row.holder).python != holder.python:
        Holder.from_json(row.holder).fence()


def _compare_and_set(
    connection: Connection, flow: str, found: Row[Any] | None, holder: Holder, expires_at: float
) -> Lease:
    """Take the lease, unless somebody took, renewed or gave it back since it was found."""
    values = {"epoch": found.epoch + 1 if found else 1, "holder": holder.to_json(), "expires_at": expires_at}
    values |= {"writes": None, "mode": None, "wanted_at": None}
    unchanged = (leases.c.epoch == found.epoch) & (leases.c.expires_at == found.expires_at) if found else false()
    statement = database.insert(connection, leases).values(flow=flow, **values)
    statement = statement.on_conflict_do_update(index_elements=["flow"], set_=values, where=unchanged)
    # Not `rowcount`, which an INSERT does not have on PostgreSQL.
    epoch = connection.execute(statement.returning(leases.c.epoch)).scalar_one_or_none()
    if epoch is None:
        newest = connection.execute(select(leases.c.holder).where(leases.c.flow == flow)).scalar_one()
        raise LeaseHeld(
            f"{flow} changed hands at this very moment, now {Holder.from_json(newest)} has it: "
            f"leave it to that driver, or try again"
        )
    return Lease(flow, epoch)


def renew(connection: Connection, held: list[Lease], ttl_seconds: float) -> None:
    """Hold on for another `ttl_seconds`. Raises LeaseLost where somebody else has taken over."""
    expires_at = database.now(connection) + ttl_seconds
    still_held = _lock(connection, held)
    if lost := min(set(held) - still_held, default=None):
        raise LeaseLost(f"{lost.flow} was taken over by another driver (this one held epoch {lost.epoch})")
    _set_expiry(connection, still_held, expires_at)


def release(engine: Engine, held: list[Lease]) -> None:
    """Give back, so that the next holder need not wait. Harmless for a lease that was lost."""
    with database.transaction(engine) as connection:
        _set_expiry(connection, _lock(connection, held), 0.0)


def _lock(connection: Connection, held: list[Lease]) -> set[Lease]:
    """Those that nobody has taken over or given back; their rows are locked, in the order in which `acquire` does."""
    # PostgreSQL may sort by a language.
    order = leases.c.flow.collate("C") if connection.dialect.name == "postgresql" else leases.c.flow
    names = [lease.flow for lease in held]
    mine = select(leases.c.flow, leases.c.epoch).where(leases.c.flow.in_(names), leases.c.expires_at > 0)
    rows = connection.execute(mine.order_by(order).with_for_update())
    return {Lease(row.flow, row.epoch) for row in rows} & set(held)


def _set_expiry(connection: Connection, held: set[Lease], expires_at: float) -> None:
    names = [lease.flow for lease in held]
    connection.execute(update(leases).where(leases.c.flow.in_(names)).values(expires_at=expires_at))


def of_driver(name: str) -> str:
    """The name of the lease that a supervised driver holds beside those of its flows, so that it is started once."""
    return f"driver {name}"


def of_window(table: str) -> str:
    """The name of the lease that the holder of a table's window has, or of its intent."""
    return f"window {table}"


def epoch(connection: Connection, name: str) -> int:
    """The fencing token of the newest holder; 0 before the first."""
    return connection.execute(select(leases.c.epoch).where(leases.c.flow == name)).scalar_one_or_none() or 0


def holders(connection: Connection) -> dict[str, Holder]:
    """Who holds a lease that has not expired, by flow."""
    now = database.now(connection)
    rows = connection.execute(select(leases.c.flow, leases.c.holder).where(leases.c.expires_at > now)).all()
    # A driver holds many leases, and is one holder.
    holder_of = {text: Holder.from_json(text) for text in {row.holder for row in rows}}
    return {row.flow: holder_of[row.holder] for row in rows}


def alive(connection: Connection) -> dict[str, Holder]:
    """Of those, the ones that are not known to be dead."""
    found = holders(connection)
    living = {holder for holder in set(found.values()) if not holder.is_known_dead}
    return {flow: holder for flow, holder in found.items() if holder in living}
