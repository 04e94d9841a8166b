"""The flows of one driver: started, watched and ended side by side, each on its own."""

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from sqlalchemy import Engine

from include import catalog
from include.control import holds, lease, orders, resets
from include.control.definitions import INVALID_DEFINITION
from include.control.jobs import rewinds
from include.control.lease_renewer import LeaseRenewer
from include.control.lock import LockRequest
from include.control.observed_flow import Failure
from include.control.orders import Order, Orders
from include.engine import failure
from include.engine.checkpoints import checkpoint, deployment
from include.engine.stream import flow
from include.engine.stream.flow import Flow
from include.engine.stream.pacer import Pacer
from include.engine.stream.progress import Progress
from include.engine.stream.side_jobs import SideJobs
from include.engine.tables import create_table
from include.errors import DeclarationError, FlowFailed, LeaseHeld, SluiceError, Unreachable
from include.readers import resume_position
from include.spec import Table

POLL_SECONDS = 1
# While it does something beside them, which waits for flows to end.
BUSY_POLL_SECONDS = 0.2
SIGN_SECONDS = 5
ALTER_SECONDS = 20


class Host:
    """Runs flows in one Spark session, under leases that `keeper` holds."""

    def __init__(self, spark: SparkSession, engine: Engine, keeper: LeaseRenewer, driver: str) -> None:
        self._spark = spark
        self._engine = engine
        self._keeper = keeper
        self._driver = driver
        self._progress = Progress(driver)
        self._pacer = Pacer(spark)
        self._flows: dict[str, Flow] = {}
        self._orders = Orders({}, frozenset(), 0)
        self._table_files = catalog.versions()
        # What the control database was not there to be told.
        self._untold: list[Callable[[], None]] = []

    def run_once(self, tables: list[Table]) -> None:
        """One flow after the other, each to the end of what its source holds now. Raises what ends the first."""
        told = orders.read(self._engine, self._driver, [table.flow for table in tables])
        for table in tables:
            orders.begin(self._engine, [table.flow], by_hand=True)
            error = self._attempt(table, told.of[table.flow], once=True)
            while error is None and self._flows[table.flow].is_alive:
                self._show_signs()
                self._progress.keep(self._flows[table.flow])
                # What ended it is told by `_end`.
                with suppress(StreamingQueryException):
                    self._flows[table.flow].query.awaitTermination(POLL_SECONDS)
            error = error or self._end(table.flow)
            if error:
                raise error

    def run(self, tables: list[Table], is_supervised: bool, beside: SideJobs | None = None) -> None:
        """All flows side by side, until none is wanted, or until the driver is to make room for its successor.

        A flow that fails leaves the others alone: it says why, and waits for the supervisor to start it again; without
        a supervisor, what ended the first is raised.
        """
        names = [table.flow for table in tables]
        self._orders = orders.read(self._engine, self._driver, names)
        print(f"sluice: driver '{self._driver}' hosts {', '.join(names)}", flush=True)
        rounds = 0
        while True:
            leaves = is_supervised and self._keeper.epoch(lease.of_driver(self._driver)) <= self._orders.ends_epoch
            for name in names:
                error = self._tend(name, leaves)
                if error and not is_supervised:
                    raise error
            is_busy = beside is not None and beside.turn(self._orders, leaves)
            wanted = [name for name in names if self._orders.of[name].state != "stopped"]
            if not (self._flows or self._untold or is_busy) and (leaves or not wanted):
                return
            self._progress.turn()
            rounds += 1
            if rounds % SIGN_SECONDS == 0:
                self._show_signs()
            threading.Event().wait(BUSY_POLL_SECONDS if is_busy else POLL_SECONDS)
            self._tell()
            if is_supervised:
                names += self._new_flows(names)
            self._read_orders(names)

    def stop(self) -> None:
        """Return when no query can write any more; Spark's own end would not wait for them."""
        self.end()
        self._spark.stop()

    def end(self) -> None:
        """The same for a session that shares its Spark with others."""
        self._pacer.stop()
        for one in self._flows.values():
            one.query.stop()
            self._progress.end(one)
        self._progress.finish()

    def _new_flows(self, names: list[str]) -> list[str]:
        """The flows of this driver that its table files have besides these; looked for when a file has changed."""
        if (files := catalog.versions()) == self._table_files:
            return []
        self._table_files = files
        declared = catalog.reload().drivers().get(self._driver, [])
        new = [table.flow for table in declared if table.flow not in names]
        with suppress(Unreachable):
            orders.begin(self._engine, new, by_hand=False)
        return new

    def _tend(self, name: str, leaves: bool) -> SluiceError | None:
        """Start, end or leave alone; returns what ended the flow, if something did."""
        order, running = self._orders.of[name], self._flows.get(name)
        if running is None:
            # What happened to it last must be known before it may be tried again.
            may_start = not (leaves or self._untold) and name not in self._orders.failed
            return self._try(name, order) if may_start and order.state != "stopped" else None
        self._progress.keep(running)
        if running.is_alive and (leaves or order != running.order):
            running.end()
        # One that cannot be stopped may still write: it keeps its lease, and the others go on.
        return None if running.is_alive else self._end(name)

    def _try(self, name: str, order: Order) -> SluiceError | None:
        try:
            if not self._keeper.holds(name):
                self._keeper.take([name])
            orders.begin(self._engine, [name], by_hand=False)
        except (LeaseHeld, Unreachable):
            # Somebody else runs it, and the supervisor sees that.
            return None
        except Exception as error:
            # Whoever had it last cannot be ended, say.
            return self._give_up(name, failure.of_exception(name, error), order)
        # Its start may take minutes, and nobody looks at the others meanwhile.
        self._show_signs()
        try:
            # The table file as it is now: a restart deploys it.
            table = catalog.reload().flow(name)
        except DeclarationError as error:
            # It is tried again, and at once when the file is mended.
            return self._give_up(name, FlowFailed(str(error), INVALID_DEFINITION), order)
        except SluiceError as error:
            return self._give_up(name, error, order)
        return self._attempt(table, order, once=order.state == "draining")

    def _attempt(self, table: Table, order: Order, once: bool) -> SluiceError | None:
        try:
            self._start(table, order, once)
        except Exception as error:
            # A full disk or a damaged log of one flow is no reason to end the others.
            return self._give_up(table.flow, failure.of_exception(table.flow, error), order)
        return None

    def _start(self, table: Table, order: Order, once: bool) -> None:
        rewinds.require_none(self._engine, table.name, self._keeper.holds)
        create_table.create(self._spark, table, partial(self._alter, table))
        reset = resets.asked(self._engine, table.flow)
        if reset is None or resume_position.last_stamp(table):
            holds.require_unreleased(self._engine, table.flow)
        claimed = checkpoint.claim(self._spark, table, reset)
        if reset:
            resets.done(self._engine, reset, claimed.generation, claimed.lost)
        self._untold.append(partial(deployment.record, self._engine, self._driver, table, claimed))
        self._flows[table.flow] = flow.start(self._spark, table, claimed, self._keeper, order, self._pacer, once)
        self._keep_definition(table)

    def _keep_definition(self, table: Table) -> None:
        """By this it is started again, should its file be wrong by then."""
        declared = catalog.load()
        if warning := declared.warnings.get(table.name):
            print(f"sluice: {table.flow}: {warning}", file=sys.stderr, flush=True)
        with suppress(OSError):
            catalog.keep(declared, [table.name])

    def _alter(self, table: Table, statement: str) -> None:
        """Run it at the gate, with the table to itself: like a batch, it commits. Raises Unreachable."""
        deadline = time.monotonic() + ALTER_SECONDS
        try:
            if not self._keeper.enter(
                LockRequest(table.flow, table.name, alone=True), lambda: time.monotonic() < deadline
            ):
                raise Unreachable(
                    f"{table.flow}: its file changes its table, which others have been writing for {ALTER_SECONDS} s: "
                    f"it is tried again"
                )
            self._spark.sql(statement)
        finally:
            self._keeper.leave(table.flow)

    def _end(self, name: str) -> SluiceError | None:
        """Close the books on a query that has ended."""
        ended = self._flows.pop(name)
        self._progress.end(ended)
        if not self._flows:
            self._progress.finish()
        if ended.query.exception() is not None and not ended.is_stopped_at_gate:
            print(ended.query.exception(), file=sys.stderr, flush=True)
            return self._give_up(name, failure.of_query(name, ended.query, ended.error), ended.order)
        if ended.order.state == "draining" and not ended.is_stopped_at_gate:
            self._untold.append(lambda: orders.end_drain(self._engine, name))
        self._release(name)
        return None

    def _give_up(self, name: str, error: SluiceError, order: Order) -> SluiceError:
        print(f"sluice: {error}", file=sys.stderr, flush=True)
        why = Failure(str(error), getattr(error, "error", type(error).__name__), error.needs_person)
        self._untold.append(lambda: orders.fail(self._engine, [name], why, order.turn))
        self._release(name)
        return error

    def _release(self, name: str) -> None:
        self._pacer.remove(name)
        checkpoint.release(name)
        self._tell()
        if self._keeper.holds(name):
            with suppress(Unreachable):
                self._keeper.give_back([name])

    def _tell(self) -> None:
        with suppress(Unreachable):
            while self._untold:
                self._untold[0]()
                self._untold.pop(0)

    def _show_signs(self) -> None:
        if alive := [name for name, one in self._flows.items() if one.has_progressed()]:
            with suppress(Unreachable):
                orders.show_signs(self._engine, alive, self._pacer.intervals())

    def _read_orders(self, names: list[str]) -> None:
        """While the database is away, what was wanted before still holds."""
        with suppress(Unreachable):
            self._orders = orders.read(self._engine, self._driver, names)
