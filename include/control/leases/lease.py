"""Leases: the right to write, held by a live process, and lost when it stops renewing."""

import threading
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, false, select, update

from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import leases
from include.errors import LeaseHeld, LeaseLost

# How often a lease is looked at that seems to have expired.
SIGHTING_SECONDS = 0.5


@dataclass(frozen=True, order=True)
class Lease:
    """A lease that was taken. epoch: the fencing token, one above that of the previous holder."""

    flow: str
    epoch: int


class Sightings:
    """Since when this process has seen each lease unchanged, by its own clock.

    A holder renews its lease within a TTL, or ends itself. So the holder of a lease that stays unchanged for a TTL can
    write no more, even if the clock of the database was set forward.
    """

    def __init__(self, ttl_seconds: float) -> None:
        self._ttl_seconds = ttl_seconds
        # The last one of each lease, with its epoch and expiry.
        self._sightings: dict[str, tuple[int, float, float]] = {}

    def seconds_left(self, name: str, epoch: int, expires_at: float, holder: Holder) -> float:
        """Notes the lease as just read. Returns for how long it has to stay so until its holder can write no more.

        0 for a holder on this machine, which is killed before anybody follows it.
        """
        now_seconds = database.boottime()
        seen_epoch, seen_expiry, since = self._sightings.get(name, (epoch, expires_at, now_seconds))
        if (seen_epoch, seen_expiry) != (epoch, expires_at):
            since = now_seconds
        self._sightings[name] = epoch, expires_at, since
        if holder.python.is_here or expires_at == 0:
            return 0.0
        return max(0.0, since + self._ttl_seconds - now_seconds)


def acquire(
    engine: Engine, flows: list[str], holder: Holder, ttl_seconds: float, former_ttl_seconds: float | None = None
) -> list[Lease]:
    """Take the leases of all `flows` or of none. Raises LeaseHeld with the first flow that is not free, and
    Unreachable.

    former_ttl_seconds: within which a former holder renews its lease; None: the same as this one.

    A lease is free if nobody holds it, if it has expired, or if its holder is known to be dead. The processes of such a
    holder are killed first, so that it cannot commit any more. One on another machine is waited for: see `Sightings`.
    """
    sightings = Sightings(former_ttl_seconds or ttl_seconds)
    return take(engine, fence_former_holders(engine, flows, holder, sightings), flows, holder, ttl_seconds)


def fence_former_holders(
    engine: Engine, flows: list[str], successor: Holder, sightings: Sightings
) -> dict[str, Row[Any]]:
    """The first half of `acquire`, which may take seconds: check that all leases are free, and fence former holders.

    Returns the stored rows of the leases. Raises LeaseHeld, Unreachable, and SluiceError if a holder survives SIGKILL.
    """
    rows, seconds_left = _free_rows(engine, flows, sightings)
    while seconds_left > 0:
        threading.Event().wait(min(seconds_left, SIGHTING_SECONDS))
        rows, seconds_left = _free_rows(engine, flows, sightings)
    # Outside a transaction: to kill a process may take longer than others can wait for a lock. And before the leases
    # change hands: if this process died in between, the former holders would be forgotten.
    for row in rows.values():
        _fence_former(row, successor)
    return rows


def take(
    engine: Engine, rows: dict[str, Row[Any]], flows: list[str], successor: Holder, ttl_seconds: float
) -> list[Lease]:
    """The second half of `acquire`: take the leases unless they have changed. Raises LeaseHeld and Unreachable."""
    with database.transaction(engine) as connection:
        expires_at = database.now(connection) + ttl_seconds
        # Rows are locked in sorted order, which prevents deadlocks.
        taken = {
            flow: _compare_and_set(connection, flow, rows.get(flow), successor, expires_at) for flow in sorted(flows)
        }
    return [taken[flow] for flow in flows]


def _free_rows(engine: Engine, flows: list[str], sightings: Sightings) -> tuple[dict[str, Row[Any]], float]:
    """The stored rows of these leases, and for how long they have to stay so. Raises LeaseHeld if one is not free."""
    with database.reading(engine) as connection:
        now_seconds = database.now(connection)
        # Of all leases: who follows a driver elsewhere waits for its first lease, and then for no other.
        all_rows = connection.execute(select(leases)).all()
    seconds_left = {
        row.flow: sightings.seconds_left(row.flow, row.epoch, row.expires_at, Holder.from_json(row.holder))
        for row in all_rows
    }
    rows = {row.flow: row for row in all_rows if row.flow in flows}
    for row in (rows[flow] for flow in flows if flow in rows):
        remaining_seconds = row.expires_at - now_seconds
        if remaining_seconds > 0 and not Holder.from_json(row.holder).is_known_dead:
            raise LeaseHeld(
                f"{row.flow} is already written by {Holder.from_json(row.holder)}, whose lease runs for another "
                f"{remaining_seconds:.0f} s: stop that driver first, or leave it to its work"
            )
    return rows, max((seconds_left[flow] for flow in rows), default=0.0)


def _fence_former(row: Row[Any], successor: Holder) -> None:
    """Kill a former holder that has not released the lease: it may be suspended, and could commit later."""
    is_released = row.expires_at == 0
    if not is_released and Holder.from_json(row.holder).python != successor.python:
        Holder.from_json(row.holder).fence()


def _compare_and_set(
    connection: Connection, flow: str, row: Row[Any] | None, holder: Holder, expires_at: float
) -> Lease:
    """Take the lease, unless it was taken, renewed or released since it was read."""
    values = {"epoch": row.epoch + 1 if row else 1, "holder": holder.to_json(), "expires_at": expires_at}
    values |= {"writes": None, "mode": None, "wanted_at": None}
    unchanged = (leases.c.epoch == row.epoch) & (leases.c.expires_at == row.expires_at) if row else false()
    statement = database.insert(connection, leases).values(flow=flow, **values)
    statement = statement.on_conflict_do_update(index_elements=["flow"], set_=values, where=unchanged)
    # On PostgreSQL an INSERT has no `rowcount`.
    epoch = connection.execute(statement.returning(leases.c.epoch)).scalar_one_or_none()
    if epoch is None:
        current_holder = connection.execute(select(leases.c.holder).where(leases.c.flow == flow)).scalar_one()
        raise LeaseHeld(
            f"{flow} changed hands at this very moment, now {Holder.from_json(current_holder)} has it: "
            f"leave it to that driver, or try again"
        )
    return Lease(flow, epoch)


def renew(connection: Connection, held_leases: list[Lease], ttl_seconds: float) -> None:
    """Extend the leases to `ttl_seconds` from now. Raises LeaseLost if another driver has taken one over."""
    expires_at = database.now(connection) + ttl_seconds
    still_held = _lock(connection, held_leases)
    if lost := min(set(held_leases) - still_held, default=None):
        raise LeaseLost(f"{lost.flow} was taken over by another driver (this one held epoch {lost.epoch})")
    _set_expiry(connection, still_held, expires_at)


def release(engine: Engine, held_leases: list[Lease]) -> None:
    """Release the leases, so that the next holder need not wait. Harmless for a lost lease. Raises Unreachable."""
    with database.transaction(engine) as connection:
        _set_expiry(connection, _lock(connection, held_leases), 0.0)


def _lock(connection: Connection, held_leases: list[Lease]) -> set[Lease]:
    """The leases that are still held, with their rows locked in the order of `acquire`."""
    # PostgreSQL sorts by the database's collation, Python by code point.
    order = leases.c.flow.collate("C") if connection.dialect.name == "postgresql" else leases.c.flow
    names = [lease.flow for lease in held_leases]
    still_held = select(leases.c.flow, leases.c.epoch).where(leases.c.flow.in_(names), leases.c.expires_at > 0)
    rows = connection.execute(still_held.order_by(order).with_for_update())
    return {Lease(row.flow, row.epoch) for row in rows} & set(held_leases)


def _set_expiry(connection: Connection, held_leases: set[Lease], expires_at: float) -> None:
    names = [lease.flow for lease in held_leases]
    connection.execute(update(leases).where(leases.c.flow.in_(names)).values(expires_at=expires_at))


def driver_lease(name: str) -> str:
    """The name of the lease that a supervised driver holds besides those of its flows, so that it runs once."""
    return f"driver {name}"


def host_lease(driver: str) -> str:
    """The name of the lease that a supervised driver holds once it can run flows, minutes after it was started."""
    return f"host {driver}"


def window_lease(table: str) -> str:
    """The name of the lease for a window of the table."""
    return f"window {table}"


def epoch(connection: Connection, name: str) -> int:
    """The fencing token of the newest holder; 0 before the first one."""
    return connection.execute(select(leases.c.epoch).where(leases.c.flow == name)).scalar_one_or_none() or 0


def holders(connection: Connection) -> dict[str, Holder]:
    """The holder of each lease that has not expired, by flow."""
    now_seconds = database.now(connection)
    rows = connection.execute(select(leases.c.flow, leases.c.holder).where(leases.c.expires_at > now_seconds)).all()
    # Parse each holder once: a driver holds many leases.
    holder_of = {text: Holder.from_json(text) for text in {row.holder for row in rows}}
    return {row.flow: holder_of[row.holder] for row in rows}


def alive(connection: Connection) -> dict[str, Holder]:
    """The holders that are not known to be dead, by flow."""
    holder_of = holders(connection)
    alive_holders = {holder for holder in set(holder_of.values()) if not holder.is_known_dead}
    return {flow: holder for flow, holder in holder_of.items() if holder in alive_holders}
