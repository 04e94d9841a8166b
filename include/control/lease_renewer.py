"""Renews a driver's leases while it runs, and halts the driver in time if it cannot."""

import math
import threading
from collections.abc import Callable, Set
from contextlib import suppress
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection, Engine

from include.control.flows import orders
from include.control.flows.orders import Order
from include.control.jobs import windows
from include.control.leases import lease, lock
from include.control.leases.lease import Lease, Sightings
from include.control.leases.lock import LockRequest, Obstacle
from include.control.leases.process import Holder
from include.control.store import database
from include.errors import LeaseLost, SluiceError, Unreachable
from include.settings import LEASE_CHECK_INTERVAL, LEASE_MARGIN

# How often a waiting writer checks the gate.
GATE_SECONDS = 0.25
T = TypeVar("T")


class LeaseRenewer:
    """Holds the leases of a driver's flows, and renews them every third of the TTL from `start` to `stop`.

    The deadline is measured by a clock that runs on through suspension, from before the request for the lease. So it
    always precedes the expiry in the database. Shortly before the deadline, or after another driver has taken a lease
    over, `halt` is called with the reason. It must not return before this process can no longer commit.
    """

    def __init__(self, engine: Engine, holder: Holder, ttl_seconds: float, halt: Callable[[str], None]) -> None:
        self._engine = engine
        self._holder = holder
        self._ttl_seconds = ttl_seconds
        self._halt = halt
        self._held: dict[str, Lease] = {}
        self._sightings = Sightings(ttl_seconds)
        self._pending_leaves: set[str] = set()
        self._deadline = math.inf
        # A lease must not be released during its renewal, which would find it lost.
        self._renewal_lock = threading.Lock()
        self._stopped = threading.Event()
        self._closed = threading.Event()
        # Two threads: a renewal that hangs in the network must not delay the check of the deadline.
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._renew_forever, self._watch)]

    def take(self, flows: list[str]) -> None:
        """Acquire the leases of all these flows or of none. Raises LeaseHeld and Unreachable."""
        if self._closed.is_set():
            raise SluiceError(f"{', '.join(flows)}: not begun any more, because what works here is to end")
        # Outside the lock: to kill a former holder takes seconds, in which held leases must be renewed.
        rows = lease.fence_former_holders(self._engine, flows, self._holder, self._sightings)
        with self._renewal_lock:
            requested_at = database.boottime()
            leases = lease.take(self._engine, rows, flows, self._holder, self._ttl_seconds)
            if not self._held:
                self._postpone(requested_at)
            self._held |= {acquired.flow: acquired for acquired in leases}

    def give_back(self, flows: list[str]) -> None:
        """Release these leases, so that the next holder need not wait. Raises Unreachable."""
        with self._renewal_lock:
            released = [self._held.pop(flow) for flow in flows]
            if not self._held:
                self._deadline = math.inf
            lease.release(self._engine, released)

    def holds(self, flow: str) -> bool:
        """Whether this driver holds the flow's lease."""
        return flow in self._held

    def epoch(self, flow: str) -> int:
        """The fencing token with which the flow commits."""
        return self._held[flow].epoch

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Acquire no more leases, and end all waits at the gate. Held leases are kept until `stop`."""
        self._closed.set()

    def stop(self) -> None:
        """Stop renewing, and release all leases. If the database is unreachable, they expire."""
        self.close()
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        with suppress(Unreachable):
            self.give_back(list(self._held))

    def enter(self, request: LockRequest, may_wait: Callable[[], bool], expected: Order | None = None) -> bool:
        """Pass the gate before a table is written. Returns True once the lock is held, and False if the writer must
        stop.

        may_wait: called before every check; False ends the wait. expected: the order of the flow when it started;
        another order ends the wait. Each check renews the flow's lease in the same transaction, and all leases if they
        are due. It waits while the database is unreachable, until `halt` ends a wait that takes too long. The caller
        calls `leave` in any case.
        """
        blocked: tuple[float, Obstacle] | None = None
        while may_wait() and self.holds(request.name) and not self._closed.is_set():
            try:
                check = partial(_check_gate, request=request, expected=expected, blocked=blocked)
                order, obstacle, now_seconds = self._renew_and(check, {request.name})
                if order != expected:
                    return False
                if obstacle is None:
                    return True
                blocked = blocked or (now_seconds, obstacle)
                # A lease that it holds only seems to have expired, by a clock that was set forward.
                is_own = self.holds(obstacle.name)
                if obstacle.is_gone and not is_own and not self._sightings.seconds_left(*obstacle.lease):
                    lock.expel(self._engine, obstacle, self._holder)
                else:
                    self._closed.wait(GATE_SECONDS)
            except Unreachable:
                self._closed.wait(self._ttl_seconds / 60)
        return False

    def wait(self, name: str, is_over: Callable[[], bool], may_wait: Callable[[], bool]) -> bool:
        """Wait until `is_over`, before the gate and without a lock. Returns False if the writer must stop.

        may_wait: as for `enter`.
        """
        while may_wait() and self.holds(name) and not self._closed.is_set():
            if is_over():
                return True
            self._closed.wait(GATE_SECONDS)
        return False

    def leave(self, name: str) -> None:
        """Release the lock; if the database is unreachable, as soon as it is reachable again."""
        self._pending_leaves.add(name)
        with suppress(Unreachable):
            self._renew_and(lambda _: None, frozenset())

    def _renew_and(self, work: Callable[[Connection], T], names: Set[str] | None = None) -> T:
        """Renew these leases, or all if they are due or None is given, and do the work in the same transaction."""
        with self._renewal_lock:
            requested_at, leaving = database.boottime(), set(self._pending_leaves)
            is_due = requested_at > self._deadline - self._ttl_seconds / 2
            named = self._held.keys() if is_due or names is None else names | leaving & self._held.keys()
            renewed = [self._held[name] for name in named]
            try:
                with database.transaction(self._engine) as connection:
                    lease.renew(connection, renewed, self._ttl_seconds)
                    for name in leaving & self._held.keys():
                        lock.release(connection, name)
                    result = work(connection)
            except LeaseLost as error:
                self._halt(str(error))
                raise
            self._pending_leaves -= leaving
            if self._held and len(renewed) == len(self._held):
                self._postpone(requested_at)
            return result

    def _postpone(self, requested_at: float) -> None:
        # The margin leaves time to halt the JVM.
        self._deadline = requested_at + self._ttl_seconds * (1 - LEASE_MARGIN)

    def _renew_forever(self) -> None:
        pause_seconds = self._ttl_seconds / 3
        while not self._stopped.wait(pause_seconds):
            try:
                self._renew_and(lambda _: None)
                pause_seconds = self._ttl_seconds / 3
            except Unreachable:
                pause_seconds = self._ttl_seconds / 30

    def _watch(self) -> None:
        while not self._stopped.wait(self._ttl_seconds * LEASE_CHECK_INTERVAL):
            if database.boottime() > self._deadline:
                self._halt(f"the control database did not answer for {self._ttl_seconds * (1 - LEASE_MARGIN):.0f} s")


def _check_gate(
    connection: Connection, request: LockRequest, expected: Order | None, blocked: tuple[float, Obstacle] | None
) -> tuple[Order | None, Obstacle | None, float]:
    """The flow's order, the obstacle at the gate, and the time. blocked: when the wait began, and for what."""
    now_seconds = database.now(connection)
    order = orders.order(connection, request.name) if expected else None
    if order != expected:
        return order, None, now_seconds
    obstacle = lock.enter(connection, request)
    if obstacle is None and blocked and blocked[1].name == lease.window_lease(request.table):
        windows.record_pause(connection, request, blocked[1].epoch, blocked[0], now_seconds)
    return order, obstacle, now_seconds
