"""Keeps a driver's leases while it works, and ends the driver in time when it cannot."""

import threading
from collections.abc import Callable

from sqlalchemy import Engine

from include.control import database, lease
from include.control.lease import Lease
from include.errors import LeaseLost, Unreachable


class Keeper:
    """Renews `held` every third of the TTL until `stop`.

    The deadline is counted on a clock that runs on through suspension, from before the renewal was sent, so it always
    lies before the moment at which the database would let somebody else in. When it comes near, or when somebody else
    has taken over, `halt` is called with the reason; it must not return before this process can no longer commit.
    """

    def __init__(self, engine: Engine, held: list[Lease], ttl_seconds: float, halt: Callable[[str], None]) -> None:
        self._engine = engine
        self._held = held
        self._ttl_seconds = ttl_seconds
        self._halt = halt
        self._deadline = database.boottime() + ttl_seconds * 5 / 6
        self._stopped = threading.Event()
        # Two threads: a renewal that hangs in the network must not keep the clock from being watched.
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._renew_forever, self._watch)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop renewing and give the leases back."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        lease.release(self._engine, self._held)

    def pass_gate(self, flow: str) -> bool:
        """The one check before a batch is written: True to write it, False where the flow is to stop.

        Renews the lease and reads what is wanted in one short transaction. While the database is away it waits; if
        that lasts too long, `halt` ends the wait.
        """
        while not self._stopped.is_set():
            try:
                return self._renew(flow) == "running"
            except Unreachable:
                self._stopped.wait(self._ttl_seconds / 60)
        return False

    def is_wanted(self, flow: str) -> bool:
        """Whether the flow is to run. While the database is away, what was wanted before still holds."""
        try:
            with database.transaction(self._engine) as connection:
                return lease.wanted(connection, flow) == "running"
        except Unreachable:
            return True

    def _renew(self, flow: str) -> str:
        asked_at = database.boottime()
        try:
            with database.transaction(self._engine) as connection:
                lease.renew(connection, self._held, self._ttl_seconds)
                state = lease.wanted(connection, flow)
        except LeaseLost as lost:
            self._halt(str(lost))
            raise
        # A sixth early: halting a JVM takes a moment.
        self._deadline = max(self._deadline, asked_at + self._ttl_seconds * 5 / 6)
        return state

    def _renew_forever(self) -> None:
        pause_seconds = self._ttl_seconds / 3
        while not self._stopped.wait(pause_seconds):
            try:
                self._renew(self._held[0].flow)
                pause_seconds = self._ttl_seconds / 3
            except Unreachable:
                pause_seconds = self._ttl_seconds / 30

    def _watch(self) -> None:
        while not self._stopped.wait(self._ttl_seconds / 60):
            if database.boottime() > self._deadline:
                self._halt(f"the control database did not answer for {self._ttl_seconds * 5 / 6:.0f} s")
