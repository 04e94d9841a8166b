"""Runs one maintenance window of one table, in a process of its own or in a driver."""

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
from include.control import lease
from include.control.jobs import windows
from include.control.lease_renewer import LeaseRenewer
from include.control.process import Holder
from include.control.store import database
from include.engine.jobs.table_window import Window
from include.engine.session import open_session
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.engine.tables.read_table import read_table
from include.errors import LeaseHeld, SluiceError, Unreachable
from include.maintenance import table_state
from include.settings import settings
from include.spec import Table

NICE = 10
POLL_SECONDS = 0.2


def dry_run(table: Table, tables: Catalog) -> None:
    """Prints what a window would do now and which files it would delete; changes nothing."""
    for survey in table_state.survey(database.connect(settings().control_url), table, tables):
        print("\n".join(survey.lines()))
        for file in survey.would_delete(time.time()):
            print(f"{survey.name}: would delete {file.path} ({file.bytes:,} bytes)")


def run(table: Table, tables: Catalog, number: int | None = None) -> None:
    """Does the maintenance that is worth doing, in a window. number: of the planned window in the calendar, if any.

    Raises LeaseHeld if the table has another window, Unreachable, and FlowFailed if a step fails.
    """
    engine = database.connect(settings().control_url)
    surveys = table_state.survey(engine, table, tables)
    print("\n".join(line for survey in surveys for line in survey.lines()), flush=True)
    if number is None:
        is_worth_it = table_state.is_worth_it(engine, table, surveys)
        number = windows.plan(engine, table.name, "by hand", table_state.why(surveys), is_worth_it)
        if not is_worth_it:
            return
    with _planned_window(engine, table, tables, number, [survey.name for survey in surveys]) as (table_window, halt):
        table_window.run(halt)


@contextmanager
def open_window(engine: Engine, table: Table, tables: Catalog, number: int, reads: list[str]) -> Iterator[Window]:
    """Yields an open window of the calendar, with its own Spark session and leases.

    reads: stored tables that warm up the session. Raises as `run`.
    """
    with _planned_window(engine, table, tables, number, reads) as (table_window, halt), table_window.open(halt):
        yield table_window


@contextmanager
def _planned_window(
    engine: Engine, table: Table, tables: Catalog, number: int, reads: list[str]
) -> Iterator[tuple[Window, Callable[[str], None]]]:
    """Yields a window of the calendar that is not open yet, and what ends this process at once."""
    with open_worker(engine, tables, f"maintain {table.name}", reads) as job_worker:
        take_leases(job_worker, table, number)
        yield job_worker.window(table, number), job_worker.halt


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
    def hold_leases(self, names: list[str], timeout_seconds: float) -> Iterator[None]:
        """Holds these leases, which it waits for. Raises LeaseHeld if that takes longer than `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                self.renewer.take(names)
                break
            except LeaseHeld:
                if time.monotonic() > deadline:
                    raise
            threading.Event().wait(POLL_SECONDS)
        try:
            yield
        finally:
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
    return [lease.window_lease(table.name), *([table.flow] if table.merges_in_windows else [])]


def take_leases(worker: Worker, table: Table, number: int) -> None:
    """Takes the leases of a planned window. Raises LeaseHeld, and closes the window as skipped, if another has them."""
    try:
        worker.renewer.take(leases(table))
    except SluiceError as error:
        windows.close_unfinished(worker.engine, number, "skipped", str(error))
        raise


def _warm_up(spark: SparkSession, reads: list[str]) -> None:
    """Loads the classes of a session's first command, which takes seconds, while the flows still write."""
    for name in reads:
        read_table(spark, name).limit(1).collect()


def _lower_priority(jvm: int) -> None:
    """Lowers the priority of this process below that of streams on the same machine."""
    with suppress(OSError):
        for thread in Path(f"/proc/{jvm}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICE)
