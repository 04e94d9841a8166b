"""Starts, watches and ends the flows of one driver, each independently."""

import threading
import time
from collections.abc import Callable, Container, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from sqlalchemy import Engine

from include import catalog, logs
from include.control.flows import orders
from include.control.flows.observed_flow import Failure
from include.control.flows.orders import Order, Orders
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.store import database
from include.engine import failure
from include.engine.checkpoints import checkpoint
from include.engine.session import jvm_of
from include.engine.stream import flow, preparation
from include.engine.stream.executors import Executors
from include.engine.stream.flow import RunningFlow
from include.engine.stream.pacer import Pacer
from include.engine.stream.progress import Progress
from include.engine.stream.side_jobs import SideJobs
from include.erasure import requests
from include.errors import LeaseHeld, SluiceError, Unreachable
from include.spec import Flow

POLL_SECONDS = 1
# While a side job runs, which may wait for flows to end, and for so many seconds after a move of a flow.
BUSY_POLL_SECONDS = 0.2
MOVE_SECONDS = 15
HEARTBEAT_POLLS = 5
# While an erasure looks for what is left.
CLEANUP_POLLS = 10


class Host:
    """Runs flows in one Spark session, under leases that `renewer` holds."""

    def __init__(self, spark: SparkSession, engine: Engine, renewer: LeaseRenewer, driver: str) -> None:
        self._spark = spark
        self._engine = engine
        self._renewer = renewer
        self._driver = driver
        self._executors = Executors(spark, engine, driver)
        self._progress = Progress(driver, self._executors)
        self._pacer = Pacer(spark)
        self._flows: dict[str, RunningFlow] = {}
        self._orders = Orders({}, frozenset(), 0)
        self._table_files = catalog.file_versions()
        # As of the newest look at them: of moved flows, and by flow.
        self._placements: Mapping[str, str] = {}
        self._driver_of: dict[str, str] = {}
        self._leaving: frozenset[str] = frozenset()
        self._moves_until = 0.0
        # Writes that wait because the control database is unreachable.
        self._pending_writes: list[Callable[[], None]] = []
        # Nobody sees a flow wait that a person or a job runs once.
        self._is_by_hand = False

    def run_once(self, tables: list[Flow]) -> None:
        """Runs the flows one after the other, each to the present end of its source. Raises the first error."""
        current_orders = orders.read(self._engine, self._driver, [table.flow for table in tables])
        self._is_by_hand = True
        for table in tables:
            orders.begin(self._engine, [table.flow], by_hand=True)
            error = self._start(table.flow, current_orders.of[table.flow], once=True, table=table)
            while error is None and (self._flows[table.flow].is_alive or self._flows[table.flow].starts_again):
                self._send_heartbeats()
                self._progress.keep(self._flows[table.flow])
                # `_close` returns the error.
                with suppress(StreamingQueryException):
                    self._flows[table.flow].query.awaitTermination(POLL_SECONDS)
                if not self._flows[table.flow].is_alive and self._flows[table.flow].starts_again:
                    error = self._start_again(table.flow)
            # Not the flow itself: the frame stands in the traceback of an error, which outlives the flow.
            result = self._result(table.flow)
            error = error or self._close(table.flow)
            if error:
                raise error
            if result:
                logs.info(result)

    def _result(self, name: str) -> str | None:
        """What a flow that has read its source to the end has done, in words."""
        ended_flow = self._flows.get(name)
        if ended_flow is None or ended_flow.is_stopped_at_gate:
            return None
        return f"{name} has read its source to the end, batches: {ended_flow.batches_done:,}"

    def run(self, tables: list[Flow], is_supervised: bool, side_jobs: SideJobs | None = None) -> None:
        """Runs all flows side by side until none is wanted, or until the driver must make room for its successor.

        A failing flow does not stop the others; a supervisor starts it again. Unsupervised, its error is raised.
        """
        names = [table.flow for table in tables]
        self._orders = orders.read(self._engine, self._driver, names)
        logs.info(f"driver '{self._driver}' hosts {', '.join(names)}")
        self._executors.turn(self._orders.executors)
        polls = 0
        while True:
            is_ending = (
                is_supervised and self._renewer.epoch(lease.driver_lease(self._driver)) <= self._orders.ends_epoch
            )
            if is_supervised and not is_ending:
                self._offer()
            self._find_leaving(names)
            for name in names:
                order, must_end = self._order(name), is_ending or name in self._leaving
                if name in self._flows:
                    error = self._tend(name, order, must_end)
                elif self._may_start(name, order, must_end):
                    error = self._start(name, order, once=order.state == "draining")
                else:
                    error = None
                if error and not is_supervised:
                    raise error
            names = [name for name in names if name in self._flows or not self._has_left(name)]
            is_busy = side_jobs is not None and side_jobs.turn(self._orders, is_ending)
            wanted_flows = [name for name in names if self._order(name).state != "stopped"]
            if not (self._flows or self._pending_writes or is_busy) and (is_ending or not wanted_flows):
                return
            self._progress.rotate()
            polls += 1
            if polls % HEARTBEAT_POLLS == 0:
                self._send_heartbeats()
            if polls % CLEANUP_POLLS == 0:
                self._clean_up_for_erasures()
            is_moving = time.monotonic() < self._moves_until
            threading.Event().wait(BUSY_POLL_SECONDS if is_busy or is_moving else POLL_SECONDS)
            self._flush_writes()
            if is_supervised:
                names += self._new_flows(names)
            self._read_orders(names)
            self._executors.turn(self._orders.executors)

    def stop(self) -> None:
        """Ends all queries and Spark. Unlike `SparkSession.stop` alone, it waits until no query can write."""
        self.end()
        self._spark.stop()

    def end(self) -> None:
        """Ends all queries, but not Spark, which other sessions share."""
        self._pacer.stop()
        for running in self._flows.values():
            running.query.stop()
            self._progress.end(running)
            running.close()
        self._progress.finish()

    def _new_flows(self, names: list[str]) -> list[str]:
        """Returns flows that changed table files add to this driver, or that somebody has moved to it."""
        files, placements = catalog.file_versions(), self._orders.placements
        if (files, placements) == (self._table_files, self._placements):
            return []
        has_new_files = files != self._table_files
        self._table_files, self._placements = files, placements
        tables = replace(catalog.reload() if has_new_files else catalog.load(), placements=placements)
        self._driver_of = {table.flow: driver for driver, flows in tables.drivers().items() for table in flows}
        new = [name for name, driver in self._driver_of.items() if driver == self._driver and name not in names]
        if has_new_files:
            with suppress(Unreachable):
                orders.begin(self._engine, new, by_hand=False)
        if new:
            self._moves_until = time.monotonic() + MOVE_SECONDS
        return new

    def _offer(self) -> None:
        """Shows other drivers that this one can take flows of theirs."""
        if not self._renewer.holds(name := lease.host_lease(self._driver)):
            with suppress(LeaseHeld, Unreachable):
                self._renewer.take([name])

    def _find_leaving(self, names: list[str]) -> None:
        """Finds the flows that belong to another driver, which is up. Until it is up, they go on here."""
        others = {name: driver for name in names if (driver := self._driver_of.get(name, self._driver)) != self._driver}
        up: Container[str] = ()
        if others:
            with suppress(Unreachable), database.reading(self._engine) as connection:
                up = lease.alive(connection)
        leaving = frozenset(name for name, driver in others.items() if lease.host_lease(driver) in up)
        if leaving - self._leaving:
            self._moves_until = time.monotonic() + MOVE_SECONDS
        self._leaving = leaving

    def _has_left(self, name: str) -> bool:
        """Whether the flow has moved to another driver, which can take it now."""
        if name not in self._leaving or self._pending_writes:
            return False
        logs.info(f"it has moved to driver '{self._driver_of[name]}'", name)
        return True

    def _order(self, name: str) -> Order:
        # The orders of a new flow are unknown until the database can be reached.
        return self._orders.of.get(name, Order())

    def _tend(self, name: str, order: Order, is_ending: bool) -> SluiceError | None:
        """Ends the running flow if its order has changed; returns the error that ended it, if any."""
        running = self._flows[name]
        self._progress.keep(running)
        if running.is_alive and (is_ending or order != running.order):
            running.end()
        if running.is_alive:
            # A query that cannot be stopped may still write, so it keeps its lease; the other flows go on.
            return None
        is_wanted = not is_ending and order == running.order
        return self._start_again(name) if is_wanted and running.starts_again else self._close(name)

    def _start_again(self, name: str) -> SluiceError | None:
        """Starts a flow whose query has ended, under the same lease; returns the error that prevents that, if any."""
        ended_flow = self._flows.pop(name)
        if not ended_flow.needs_new_plan:
            logs.info("it restarts, as its source has other columns now", name)
        self._progress.end(ended_flow)
        ended_flow.close()
        error = self._start(name, ended_flow.order, ended_flow.once, ended_flow.table, ended_flow.isolates)
        if error is None:
            self._flows[name].batches_done += ended_flow.batches_done
        return error

    def _may_start(self, name: str, order: Order, is_ending: bool) -> bool:
        # Its last result must be stored before it may start again.
        is_settled = not self._pending_writes and name not in self._orders.failed
        return is_settled and not is_ending and order.state != "stopped"

    def _start(
        self, name: str, order: Order, once: bool, table: Flow | None = None, isolates: bool = False
    ) -> SluiceError | None:
        """Starts a flow; returns the error that prevents that, if any.

        table: its declaration, if the caller holds its lease. None means that this takes the lease and reads the file.
        isolates: as for `RunningFlow`.
        """
        try:
            if table is None:
                if not self._acquire(name):
                    # Another process runs it, and the supervisor sees that.
                    return None
                # The start may take minutes, in which the other flows send no heartbeat.
                self._send_heartbeats()
                table = preparation.declared(name)
            claim = preparation.claim(self._spark, self._engine, self._renewer, table)
            self._pending_writes.append(partial(preparation.record, self._engine, self._driver, table, claim))
            self._flows[name] = flow.start(
                *(self._spark, table, claim, self._renewer, order, self._pacer, once, isolates),
                may_wait=not self._is_by_hand,
            )
            preparation.keep_definition(table)
        except Exception as error:
            # An error of one flow, such as a damaged log, must not end the others.
            return self._give_up(name, failure.of_exception(name, error, table), order)
        return None

    def _acquire(self, name: str) -> bool:
        try:
            if not self._renewer.holds(name):
                self._renewer.take([name])
            orders.begin(self._engine, [name], by_hand=False)
        except (LeaseHeld, Unreachable):
            return False
        return True

    def _close(self, name: str) -> SluiceError | None:
        """Cleans up after a query that has ended; returns its error, if any."""
        ended_flow = self._flows.pop(name)
        self._progress.end(ended_flow)
        ended_flow.close()
        if not self._flows:
            self._progress.finish()
        if ended_flow.query.exception() is not None and not ended_flow.is_stopped_at_gate:
            error = failure.of_query(name, ended_flow.query, ended_flow.error, ended_flow.table)
            # The whole exception quotes values of rows.
            if not ended_flow.table.has_personal_data:
                logs.error(ended_flow.query.exception(), name)
            return self._give_up(name, error, ended_flow.order)
        if ended_flow.order.state == "draining" and not ended_flow.is_stopped_at_gate:
            self._pending_writes.append(lambda: orders.end_drain(self._engine, name))
        self._release(name)
        return None

    def _give_up(self, name: str, error: SluiceError, order: Order) -> SluiceError:
        logs.error(error, name)
        cause = Failure(str(error), getattr(error, "error", type(error).__name__), error.needs_person)
        self._pending_writes.append(lambda: orders.fail(self._engine, [name], cause, order.turn))
        self._release(name)
        return error

    def _release(self, name: str) -> None:
        self._pacer.remove(name)
        checkpoint.release(name)
        self._flush_writes()
        if self._renewer.holds(name):
            with suppress(Unreachable):
                self._renewer.give_back([name])

    def _flush_writes(self) -> None:
        with suppress(Unreachable):
            while self._pending_writes:
                self._pending_writes[0]()
                self._pending_writes.pop(0)

    def _send_heartbeats(self) -> None:
        if alive := [name for name, running in self._flows.items() if running.has_progressed() or self._pauses(name)]:
            with suppress(Unreachable):
                orders.report_progress(self._engine, alive, self._pacer.intervals())

    def _clean_up_for_erasures(self) -> None:
        """While an erasure looks for what is left, deletes the shuffle files of earlier batches."""
        with suppress(Unreachable):
            if requests.is_searching(self._engine):
                # Spark deletes them once the JVM has found that nothing refers to them.
                jvm_of(self._spark).java.lang.System.gc()

    def _pauses(self, name: str) -> bool:
        """Whether the flow has nothing to do on purpose, for longer than one that hangs would be noticed."""
        return self._flows[name].silent_seconds > flow.SILENT_SECONDS and self._pacer.is_pausing(name)

    def _read_orders(self, names: list[str]) -> None:
        """Reads the orders; keeps the last ones while the database is unreachable."""
        with suppress(Unreachable):
            self._orders = orders.read(self._engine, self._driver, names)
