"""The process that does jobs: one of its own, or a driver next to its flows."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from sqlalchemy import Engine

from include.catalog import Catalog
from include.control.jobs import windows
from include.control.jobs.store import SKIPPED
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.process import Holder
from include.engine.commit import read_table
from include.engine.jobs.maintenance_window import Window
from include.engine.session import open_session
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.errors import LeaseHeld, SluiceError, Unreachable
from include.settings import settings
from include.spec import Table

NICE = 10
POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Worker:
    """A process that may open windows. renewer: renews its leases. host: runs flows for it. halt: ends the process at
    once.
    """

    engine: Engine
    renewer: LeaseRenewer
    host: Host
    spark: SparkSession
    tables: Catalog
    halt: Callable[[str], None]

    def window(self, table: Table, number: int) -> Window:
        """Returns a window of the calendar. The caller holds the table's leases."""
        return Window(self.engine, self.renewer, self.host, self.spark, table, self.tables, number)

    @contextmanager
    def open_window(
        self, table: Table, requester: str, reason: str, wait_seconds: float | None = None
    ) -> Iterator[Window]:
        """Plans a window of the table, and yields it open. wait_seconds: None: as long as another window may last.

        Raises LeaseHeld if another job still has the table, Unreachable, and FlowFailed.
        """
        number = windows.plan(self.engine, table.name, requester, reason, is_worth_it=True)
        taken = self.take_leases(
            table, number, table.maintain.longest_minutes * 60 if wait_seconds is None else wait_seconds
        )
        with self.window(table, number).open(self.halt) as open_window:
            yield open_window
        # After a failure the leases go back only when this process can no longer write.
        self._give_back(taken)

    def take_leases(self, table: Table, number: int, wait_seconds: float = 0) -> list[str]:
        """Takes those leases of a planned window that are not held yet. The window is skipped if that is impossible."""
        names = [name for name in leases(table) if not self.renewer.holds(name)]
        try:
            self._take(names, wait_seconds)
        except SluiceError as error:
            windows.close_unfinished(self.engine, number, SKIPPED, str(error))
            raise
        return names

    @contextmanager
    def hold_leases(self, names: list[str], timeout_seconds: float) -> Iterator[None]:
        """Holds these leases, which it waits for. Raises LeaseHeld if that takes longer than `timeout_seconds`."""
        self._take(names, timeout_seconds)
        try:
            yield
        finally:
            self._give_back(names)

    def _take(self, names: list[str], timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                return self.renewer.take(names)
            except LeaseHeld:
                if time.monotonic() >= deadline:
                    raise
            threading.Event().wait(POLL_SECONDS)

    def _give_back(self, names: list[str]) -> None:
        # The host has returned the lease of a flow that it has run.
        with suppress(Unreachable):
            self.renewer.give_back([name for name in names if self.renewer.holds(name)])


@contextmanager
def open_worker(engine: Engine, tables: Catalog, name: str, reads: list[str]) -> Iterator[Worker]:
    """Yields a worker for a process of its own. reads: stored tables that warm up the session.

    On exit the worker can no longer write, and its leases go back.
    """
    jvm = driver.jvm_pid()
    _lower_priority(jvm)
    # The session starts before any lease is taken, because it takes longest and nobody may wait for it.
    spark = open_session(f"sluice {name}", tables)
    _warm_up(spark, reads)

    def halt(reason: str) -> None:
        driver.halt(jvm, reason)

    renewer = LeaseRenewer(engine, Holder.here(name, jvm), settings().lease_seconds, halt)
    host = Host(spark, engine, renewer, name)
    renewer.start()
    try:
        try:
            yield Worker(engine, renewer, host, spark, tables, halt)
        finally:
            driver.stop(host.stop, jvm)
    finally:
        renewer.stop()


def leases(table: Table) -> list[str]:
    """Names the leases that the job of a window holds: the window's, and the flow's if it merges in windows."""
    return [lease.window_lease(table.name), *([table.single_flow.flow] if table.merges_in_windows else [])]


def _warm_up(spark: SparkSession, reads: list[str]) -> None:
    """Loads the classes of a session's first command, which takes seconds, while the flows still write."""
    for name in reads:
        read_table(spark, name).limit(1).collect()


def _lower_priority(jvm: int) -> None:
    """Lowers the priority of this process below that of streams on the same machine."""
    with suppress(OSError):
        for thread in Path(f"/proc/{jvm}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICE)
