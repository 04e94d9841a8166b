"""Keeps a driver's leases while it works, and ends the driver in time when it cannot."""

import math
import threading
from collections.abc import Callable, Set
from contextlib import suppress
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, Engine

from include.control import lease, lock, orders
from include.control.jobs import windows
from include.control.lease import Lease
from include.control.lock import LockRequest, Obstacle
from include.control.orders import Order
from include.control.process import Holder
from include.control.store import database
from include.errors import LeaseLost, SluiceError, Unreachable
from include.settings import LEASE_LOOK, LEASE_MARGIN

# How soon a writer notices that its turn has come.
GATE_SECONDS = 0.25
T = TypeVar("T")


class LeaseRenewer:
    """Holds the leases of a driver's flows, and renews them every third of the TTL from `start` to `stop`.

    The deadline is counted on a clock that runs on through suspension, from before the lease was asked for, so it
    always lies before the moment at which the database would let somebody else in. When it comes near, or when
    somebody else has taken over, `halt` is called with the reason; it must not return before this process can no longer
    commit.
    """

    def __init__(self, engine: Engine, holder: Holder, ttl_seconds: float, halt: Callable[[str], None]) -> None:
        self._engine = engine
        self._holder = holder
        self._ttl_seconds = ttl_seconds
        self._halt = halt
        self._held: dict[str, Lease] = {}
        self._leaving: set[str] = set()
        self._deadline = math.inf
        # A lease must not be given back in the middle of its renewal, which would find it lost.
        self._turn = threading.Lock()
        self._stopped = threading.Event()
        self._closed = threading.Event()
        # Two threads: a renewal that hangs in the network must not keep the clock from being watched.
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._renew_forever, self._watch)]

    def take(self, flows: list[str]) -> None:
        """Acquire the leases of all these flows or of none. Raises LeaseHeld and Unreachable."""
        if self._closed.is_set():
            raise SluiceError(f"{', '.join(flows)}: not begun any more, because what works here is to end")
        # Out of turn: it takes seconds to end a former holder that hangs, and what is held must be renewed meanwhile.
        found = lease.make_way(self._engine, flows, self._holder)
        with self._turn:
            asked_at = database.boottime()
            taken = lease.take(self._engine, found, flows, self._holder, self._ttl_seconds)
            if not self._held:
                self._postpone(asked_at)
            self._held |= {one.flow: one for one in taken}

    def give_back(self, flows: list[str]) -> None:
        """Release these leases, so that the next holder need not wait. Raises Unreachable."""
        with self._turn:
            given_back = [self._held.pop(flow) for flow in flows]
            if not self._held:
                self._deadline = math.inf
            lease.release(self._engine, given_back)

    def holds(self, flow: str) -> bool:
        """Whether this driver has the flow's lease."""
        return flow in self._held

    def epoch(self, flow: str) -> int:
        """The fencing token under which the flow writes."""
        return self._held[flow].epoch

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Take nothing more and enter nowhere: whoever waits for that gives up. What is held stays so until `stop`."""
        self._closed.set()

    def stop(self) -> None:
        """Stop renewing and give everything back; where the database is away, the leases run out by themselves."""
        self.close()
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        with suppress(Unreachable):
            self.give_back(list(self._held))

    def enter(self, entry: LockRequest, patience: Callable[[], bool], since: Order | None = None) -> bool:
        """The one gate before a table is written: True once the lock is held, False where the writer is to stop.

        patience: asked before every look; False ends the wait. since: what was wanted of the flow when it started; once
        something else is wanted, it stops. Each look renews the flow's lease in the same short transaction, and all
        where their renewal is due. While the database is away it waits; if that lasts too long, `halt` ends the wait.
        `leave` follows, whatever came of it.
        """
        came: tuple[float, Obstacle] | None = None
        while patience() and self.holds(entry.name) and not self._closed.is_set():
            try:
                look = partial(_look, entry=entry, since=since, came=came)
                wanted, obstacle, now = self._renew_and(look, {entry.name})
                if wanted != since:
                    return False
                if obstacle is None:
                    return True
                came = came or (now, obstacle)
                if obstacle.is_gone:
                    lock.remove(self._engine, obstacle)
                else:
                    self._closed.wait(GATE_SECONDS)
            except Unreachable:
                self._closed.wait(self._ttl_seconds / 60)
        return False

    def leave(self, name: str) -> None:
        """Let others write; while the database is away, as soon as it is back."""
        self._leaving.add(name)
        with suppress(Unreachable):
            self._renew_and(lambda _: None, frozenset())

    def _renew_and(self, work: Callable[[Connection], T], names: Set[str] | None = None) -> T:
        """Renew these leases, or all where that is due or none are named; do this work in the same transaction."""
        with self._turn:
            asked_at, leaving = database.boottime(), set(self._leaving)
            is_due = asked_at > self._deadline - self._ttl_seconds / 2
            named = self._held.keys() if is_due or names is None else names | leaving & self._held.keys()
            renewed = [self._held[name] for name in named]
            try:
                with database.transaction(self._engine) as connection:
                    lease.renew(connection, renewed, self._ttl_seconds)
                    for name in leaving & self._held.keys():
                        lock.leave(connection, name)
                    done = work(connection)
            except LeaseLost as lost:
                self._halt(str(lost))
                raise
            self._leaving -= leaving
            if self._held and len(renewed) == len(self._held):
                self._postpone(asked_at)
            return done

    def _postpone(self, asked_at: float) -> None:
        # Halting a JVM takes a moment.
        self._deadline = asked_at + self._ttl_seconds * (1 - LEASE_MARGIN)

    def _renew_forever(self) -> None:
        pause_seconds = self._ttl_seconds / 3
        while not self._stopped.wait(pause_seconds):
            try:
                self._renew_and(lambda _: None)
                pause_seconds = self._ttl_seconds / 3
            except Unreachable:
                pause_seconds = self._ttl_seconds / 30

    def _watch(self) -> None:
        while not self._stopped.wait(self._ttl_seconds * LEASE_LOOK):
            if database.boottime() > self._deadline:
                self._halt(f"the control database did not answer for {self._ttl_seconds * (1 - LEASE_MARGIN):.0f} s")


def _look(
    connection: Connection, entry: LockRequest, since: Order | None, came: tuple[float, Obstacle] | None
) -> tuple[Order | None, Obstacle | None, float]:
    """What is wanted of the flow, who is in its way, and the time. came: since when it waits, and for whom."""
    now = database.now(connection)
    wanted = orders.order(connection, entry.name) if since else None
    if wanted != since:
        return wanted, None, now
    obstacle = lock.enter(connection, entry)
    if obstacle is None and came and came[1].name == lease.of_window(entry.table):
        windows.record_pause(connection, entry, came[1].epoch, came[0], now)
    return wanted, obstacle, now
