"""Keeps a driver's leases while it works, and ends the driver in time when it cannot."""

import math
import threading
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import Engine

from include.control import database, lease, orders
from include.control.lease import Lease
from include.control.orders import Order
from include.control.process import Holder
from include.errors import LeaseLost, Unreachable


class Keeper:
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
        self._deadline = math.inf
        # A lease must not be given back in the middle of its renewal, which would find it lost.
        self._turn = threading.Lock()
        self._stopped = threading.Event()
        # Two threads: a renewal that hangs in the network must not keep the clock from being watched.
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._renew_forever, self._watch)]

    def take(self, flows: list[str]) -> None:
        """Acquire the leases of all these flows or of none. Raises LeaseHeld and Unreachable."""
        with self._turn:
            asked_at = database.boottime()
            taken = lease.acquire(self._engine, flows, self._holder, self._ttl_seconds)
            if not self._held:
                self._postpone(asked_at)
            self._held |= {one.flow: one for one in taken}

    def give_back(self, flows: list[str]) -> None:
        """Release these leases, so that the next holder need not wait. Raises Unreachable."""
        with self._turn:
            lease.release(self._engine, [self._held.pop(flow) for flow in flows])
            if not self._held:
                self._deadline = math.inf

    def holds(self, flow: str) -> bool:
        """Whether this driver has the flow's lease."""
        return flow in self._held

    def epoch(self, flow: str) -> int:
        """The fencing token under which the flow writes."""
        return self._held[flow].epoch

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop renewing and give everything back; where the database is away, the leases run out by themselves."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        with suppress(Unreachable):
            self.give_back(list(self._held))

    def pass_gate(self, flow: str, since: Order) -> bool:
        """The one check before a batch is written: True to write it, False where the flow is to stop.

        since: what was wanted of the flow when it started; once something else is wanted, it stops. Renews the lease
        and reads that in one short transaction. While the database is away it waits; if that lasts too long, `halt`
        ends the wait.
        """
        while not self._stopped.is_set():
            try:
                return self._renew(flow) == since
            except Unreachable:
                self._stopped.wait(self._ttl_seconds / 60)
        return False

    def _renew(self, flow: str | None = None) -> Order | None:
        """Renew all leases; returns what is wanted of `flow`."""
        with self._turn:
            asked_at = database.boottime()
            try:
                with database.transaction(self._engine) as connection:
                    lease.renew(connection, list(self._held.values()), self._ttl_seconds)
                    wanted = orders.order(connection, flow) if flow else None
            except LeaseLost as lost:
                self._halt(str(lost))
                raise
            if self._held:
                self._postpone(asked_at)
            return wanted

    def _postpone(self, asked_at: float) -> None:
        # A sixth early: halting a JVM takes a moment.
        self._deadline = asked_at + self._ttl_seconds * 5 / 6

    def _renew_forever(self) -> None:
        pause_seconds = self._ttl_seconds / 3
        while not self._stopped.wait(pause_seconds):
            try:
                self._renew()
                pause_seconds = self._ttl_seconds / 3
            except Unreachable:
                pause_seconds = self._ttl_seconds / 30

    def _watch(self) -> None:
        while not self._stopped.wait(self._ttl_seconds / 60):
            if database.boottime() > self._deadline:
                self._halt(f"the control database did not answer for {self._ttl_seconds * 5 / 6:.0f} s")
