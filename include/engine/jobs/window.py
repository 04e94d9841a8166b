"""One window of one table: opened when its flows have stepped aside, and closed when the work is done."""

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
from include.errors import FlowFailed, LeaseHeld, SluiceError, Unreachable
from include.maintenance import policy, table_state, vacuum_guard
from include.maintenance.plan import CLEAN_LOG, MERGE, OPTIMIZE, VACUUM
from include.maintenance.policy import Place
from include.maintenance.table_state import Survey
from include.settings import settings
from include.spec import Table

NICE = 10
LOOK_SECONDS = 0.2


def rehearse(table: Table, tables: Catalog) -> None:
    """Say what a window would do now, and which files it would delete; nothing is touched."""
    for found in table_state.look(database.connect(settings().control_url), table, tables):
        print("\n".join(found.lines()))
        for file in found.would_delete(time.time()):
            print(f"{found.name}: would delete {file.path} ({file.bytes:,} bytes)")


def run(table: Table, tables: Catalog, number: int | None = None) -> None:
    """Do what is worth doing, in a window. number: of a planned one in the calendar.

    Raises LeaseHeld where the table has another window, Unreachable, and FlowFailed where a step fails.
    """
    engine = database.connect(settings().control_url)
    surveys = table_state.look(engine, table, tables)
    print("\n".join(line for found in surveys for line in found.lines()), flush=True)
    if number is None:
        is_worth_it = table_state.is_worth_it(engine, table, surveys)
        number = windows.plan(engine, table.name, "by hand", table_state.why(surveys), is_worth_it)
        if not is_worth_it:
            return
    run_in(engine, table, tables, number, [found.name for found in surveys], Window.maintain)


def run_in(
    engine: Engine, table: Table, tables: Catalog, number: int, reads: list[str], work: Callable[["Window"], None]
) -> None:
    """Do the work in a window of the calendar, with a Spark session and leases of its own.

    reads: stored tables to warm up with. Raises as `run`.
    """
    with worker(engine, tables, f"maintain {table.name}", reads) as own:
        try:
            own.keeper.take(leases(table))
        except SluiceError as error:
            windows.end(engine, number, "skipped", str(error))
            raise
        own.window(table, number).run(own.halt, work)


@dataclass(frozen=True)
class Worker:
    """A process that may open windows: its session, and who keeps its leases and runs flows for it."""

    engine: Engine
    keeper: LeaseRenewer
    host: Host
    spark: SparkSession
    tables: Catalog
    halt: Callable[[str], None]

    def window(self, table: Table, number: int) -> "Window":
        """One of the calendar; the leases of the table are held."""
        return Window(self.engine, self.keeper, self.host, self.spark, table, self.tables, number)

    @contextmanager
    def acquired_leases(self, names: list[str], patience_seconds: float) -> Iterator[None]:
        """These leases, once those who have them are done. Raises LeaseHeld where that takes too long."""
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                self.keeper.take(names)
                break
            except LeaseHeld:
                if time.monotonic() > deadline:
                    raise
            threading.Event().wait(LOOK_SECONDS)
        try:
            yield
        finally:
            # A flow that was run has given its own back.
            with suppress(Unreachable):
                self.keeper.give_back([name for name in names if self.keeper.holds(name)])


@contextmanager
def worker(engine: Engine, tables: Catalog, name: str, reads: list[str]) -> Iterator[Worker]:
    """reads: stored tables to warm up with. At the end nothing of it can write any more, and its leases go back."""
    jvm = driver.jvm_pid()
    _make_way(jvm)
    # First, as it takes longest, and nobody is to wait for it.
    spark = open_session(f"sluice {name}", tables)
    _warm_up(spark, reads)

    def halt(why: str) -> None:
        driver.halt(jvm, why)

    keeper = LeaseRenewer(engine, Holder.here(name, jvm), settings().lease_seconds, halt)
    host = Host(spark, engine, keeper, name)
    keeper.start()
    try:
        try:
            yield Worker(engine, keeper, host, spark, tables, halt)
        finally:
            driver.stop(host.stop, jvm)
    finally:
        keeper.stop()


def leases(table: Table) -> list[str]:
    """What the job of a window holds: the window's, and the flow's own where it runs in windows."""
    return [lease.of_window(table.name), *([table.flow] if table.merges_in_windows else [])]


@dataclass(frozen=True)
class Window:
    """number: in the calendar. keeper: holds `leases(table)`. host: runs the table's flow, where that is merged."""

    engine: Engine
    keeper: LeaseRenewer
    host: Host
    spark: SparkSession
    table: Table
    tables: Catalog
    number: int

    def run(self, halt: Callable[[str], None], work: Callable[["Window"], None] | None = None) -> None:
        """Open it, do the work, or what maintenance is worth doing, and close it.

        halt: ends this process where that takes too long. Raises FlowFailed and Unreachable.
        """
        work = work or Window.maintain
        place, _ = policy.place_of_compaction(self.table, settings().store)
        with self._open(halt, alone=work is not Window.maintain or place is not Place.ONLINE):
            surveys = self._look()
            windows.open_(self.engine, self.number, surveys[0].shape if surveys else None)
            work(self)
            windows.close(self.engine, self.number, self._look()[0].shape)

    @contextmanager
    def _open(self, halt: Callable[[str], None], alone: bool) -> Iterator[None]:
        name = lease.of_window(self.table.name)
        longest_seconds = self.table.maintain.longest_minutes * 60
        windows.ask(self.engine, self.number, self.table.name, self.keeper.epoch(name))
        deadline = time.monotonic() + longest_seconds
        entry = LockRequest(name, self.table.name, alone)
        overdue = threading.Timer(longest_seconds, halt, ["its window lasts too long"])
        overdue.daemon = True
        try:
            if not self.keeper.enter(entry, lambda: time.monotonic() < deadline):
                raise FlowFailed(
                    f"{self.table.name}: its window did not open within {longest_seconds / 60:g} minutes, because a "
                    f"batch was in hand all the time: see its driver's log, or raise longest_minutes"
                )
            overdue.start()
            # Not before the wait, in which one may begin.
            rewinds.require_none(self.engine, self.table.name, self.keeper.holds)
            yield
        except Exception as error:
            named = failure.of_exception(self.table.name, error)
            with suppress(SluiceError):
                windows.end(self.engine, self.number, "failed", str(named))
            raise named from error
        finally:
            overdue.cancel()
            self.keeper.leave(name)

    def maintain(self) -> None:
        """What is worth doing now; the table has changed since that was planned."""
        surveys = self._look()
        if not surveys or surveys[0].plan.step(MERGE).is_worth_it:
            self.begin(MERGE, self.table.name)
            self.host.run_once([self.table])
        for kind in (OPTIMIZE, VACUUM, CLEAN_LOG):
            # What one step leaves behind is the next one's work.
            for found in self._look():
                self._do(kind, found)

    def _look(self) -> list[Survey]:
        return table_state.look(self.engine, self.table, self.tables)

    def _do(self, kind: str, found: Survey) -> None:
        step = found.plan.step(kind)
        if not step.is_worth_it:
            return
        stamp = self.begin(kind, found.name)
        if kind == OPTIMIZE:
            maintain.compact(self.spark, found.name, step, stamp)
        elif kind == VACUUM:
            maintain.vacuum(self.spark, found.name, found.retention_seconds, stamp)
        else:
            vacuum_guard.clean_log(found.log, found.log_needed_from)

    def begin(self, kind: str, name: str) -> dict[str, object]:
        """Say in the calendar that this step begins; returns the stamp of its commits."""
        windows.begin_step(self.engine, self.number, f"{kind} {name}")
        print(f"sluice: window {self.number}: {kind} {name}", flush=True)
        return {"window": self.number, "step": kind}


def _warm_up(spark: SparkSession, reads: list[str]) -> None:
    """Load what the first command of a session takes seconds to load, while the flows still write."""
    for name in reads:
        spark.read.format("delta").load(str(settings().table_path(name))).limit(1).collect()


def _make_way(jvm: int) -> None:
    """Streams on the same processors come first."""
    with suppress(OSError):
        for thread in Path(f"/proc/{jvm}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), NICE)
