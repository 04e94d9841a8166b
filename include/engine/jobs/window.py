"""Runs one maintenance window of one table: opens it when the table's flows wait at their gates, and closes it after
the work.
"""

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
from include.control.jobs import rewinds, windows
from include.control.lease_renewer import LeaseRenewer
from include.control.lock import LockRequest
from include.control.process import Holder
from include.control.store import database
from include.engine import failure
from include.engine.session import open_session
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.engine.tables import maintain
from include.engine.tables.read_table import read_table
from include.errors import FlowFailed, LeaseHeld, SluiceError, Unreachable
from include.maintenance import table_state, vacuum_guard
from include.maintenance.plan import CLEAN_LOG, MERGE, OPTIMIZE, VACUUM
from include.maintenance.table_state import TableSurvey
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
    with open_window(engine, table, tables, number, [survey.name for survey in surveys]) as table_window:
        table_window.maintain()


@contextmanager
def open_window(engine: Engine, table: Table, tables: Catalog, number: int, reads: list[str]) -> Iterator["Window"]:
    """Yields an open window of the calendar, with its own Spark session and leases.

    reads: stored tables that warm up the session. Raises as `run`.
    """
    with open_worker(engine, tables, f"maintain {table.name}", reads) as job_worker:
        try:
            job_worker.keeper.take(leases(table))
        except SluiceError as error:
            windows.close_unfinished(engine, number, "skipped", str(error))
            raise
        with job_worker.window(table, number).open(job_worker.halt) as table_window:
            yield table_window


@dataclass(frozen=True)
class Worker:
    """A process that may open windows. keeper: renews its leases. host: runs flows for it. halt: ends the process at
    once.
    """

    engine: Engine
    keeper: LeaseRenewer
    host: Host
    spark: SparkSession
    tables: Catalog
    halt: Callable[[str], None]

    def window(self, table: Table, number: int) -> "Window":
        """Returns a window of the calendar. The caller holds the table's leases."""
        return Window(self.engine, self.keeper, self.host, self.spark, table, self.tables, number)

    @contextmanager
    def hold_leases(self, names: list[str], timeout_seconds: float) -> Iterator[None]:
        """Holds these leases, which it waits for. Raises LeaseHeld if that takes longer than `timeout_seconds`."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                self.keeper.take(names)
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
                self.keeper.give_back([name for name in names if self.keeper.holds(name)])


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


@dataclass(frozen=True)
class Window:
    """One window. number: its number in the calendar. keeper: holds `leases(table)`. host: runs the table's flow for a
    merge.
    """

    engine: Engine
    keeper: LeaseRenewer
    host: Host
    spark: SparkSession
    table: Table
    tables: Catalog
    number: int

    def run(self, halt: Callable[[str], None]) -> None:
        """Does the maintenance in the window. Parameters and errors: as for `open`."""
        with self.open(halt):
            self.maintain()

    @contextmanager
    def open(self, halt: Callable[[str], None]) -> Iterator["Window"]:
        """Opens the window for the work of the caller, and closes it after that.

        halt: ends this process when the window lasts too long. Raises FlowFailed and Unreachable.
        """
        name = lease.window_lease(self.table.name)
        longest_seconds = self.table.maintain.longest_minutes * 60
        windows.request(self.engine, self.number, self.table.name, self.keeper.epoch(name))
        deadline = time.monotonic() + longest_seconds
        lock_request = LockRequest(name, self.table.name, alone=True)
        timeout_timer = threading.Timer(longest_seconds, halt, ["its window lasts too long"])
        timeout_timer.daemon = True
        try:
            if not self.keeper.enter(lock_request, lambda: time.monotonic() < deadline):
                raise FlowFailed(
                    f"{self.table.name}: its window did not open within {longest_seconds / 60:g} minutes, because a "
                    f"batch was in hand all the time: see its driver's log, or raise longest_minutes"
                )
            timeout_timer.start()
            # Checked after the wait, because a rewind may begin while this job waits.
            rewinds.require_unblocked(self.engine, self.table.name, self.keeper.holds)
            surveys = self._survey()
            windows.open_(self.engine, self.number, surveys[0].shape if surveys else None)
            yield self
            # Its lease, which needs the database too, limits how long a window waits for it.
            database.retry_while_unreachable(lambda: windows.close(self.engine, self.number, self._survey()[0].shape))
        except Exception as error:
            window_error = failure.of_exception(self.table.name, error)
            with suppress(SluiceError):
                windows.close_unfinished(self.engine, self.number, "failed", str(window_error))
            raise window_error from error
        finally:
            timeout_timer.cancel()
            self.keeper.leave(name)

    def maintain(self) -> None:
        """Does the maintenance that is worth doing now; the table may have changed since the window was planned."""
        surveys = self._survey()
        if not surveys or surveys[0].plan.step(MERGE).is_worth_it:
            self.begin(MERGE, self.table.name)
            self.host.run_once([self.table])
            surveys = self._survey()
        for kind in (OPTIMIZE, VACUUM, CLEAN_LOG):
            due = [survey for survey in surveys if survey.plan.step(kind).is_worth_it]
            for survey in due:
                self._run_step(kind, survey)
            if due:
                # The step changes what the next ones have to do.
                surveys = self._survey()

    def _survey(self) -> list[TableSurvey]:
        return table_state.survey(self.engine, self.table, self.tables)

    def _run_step(self, kind: str, survey: TableSurvey) -> None:
        step = survey.plan.step(kind)
        metadata = self.begin(kind, survey.name)
        if kind == OPTIMIZE:
            maintain.compact(self.spark, survey.name, step, metadata)
        elif kind == VACUUM:
            maintain.vacuum(self.spark, survey.name, survey.retention_seconds, metadata)
        else:
            vacuum_guard.clean_log(survey.log, survey.log_needed_from)

    def begin(self, kind: str, name: str) -> dict[str, object]:
        """Records in the calendar that a step begins; returns the `userMetadata` of the step's commits."""
        database.retry_while_unreachable(lambda: windows.begin_step(self.engine, self.number, f"{kind} {name}"))
        print(f"sluice: window {self.number}: {kind} {name}", flush=True)
        return {"window": self.number, "step": kind}


def _warm_up(spark: SparkSession, reads: list[str]) -> None:
    """Loads the classes of a session's first command, which takes seconds, while the flows still write."""
    for name in reads:
        read_table(spark, name).limit(1).collect()


def _lower_priority(jvm: int) -> None:
    """Lowers the priority of this process below that of streams on the same machine."""
    with suppress(OSError):
        for thread in Path(f"/proc/{jvm}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICE)
