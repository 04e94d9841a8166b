"""What a driver is asked to do beside its flows, by rows of the control database: backfills, and windows."""

from typing import Protocol

from sqlalchemy import Engine

from include.control.jobs import backfill_queue, window_queue, windows
from include.control.jobs.backfills import Backfill
from include.control.orders import Orders
from include.engine.jobs import backfill, window
from include.engine.jobs.window import Worker
from include.errors import FlowFailed, SluiceError


class AskedJob(Protocol):
    """One of them. kind: what the holder of its leases is called.

    Every method raises Unreachable; those that say how it ended are then called again.
    """

    kind: str

    @property
    def name(self) -> str:
        """As people know it, such as "backfill 3"."""

    def begin(self) -> str | None:
        """Begin it; returns its table. None where nobody asks for it any more."""

    def work(self, worker: Worker) -> None:
        """Do it. worker: a session of its own, and a keeper that holds nothing yet."""

    def end(self) -> None:
        """It is done."""

    def leave(self) -> None:
        """The driver has to end: the next one does it."""

    def fail(self, why: str) -> None:
        """It came to nothing."""


def first_of(engine: Engine, orders: Orders, driver: str) -> AskedJob | None:
    """A window before a backfill, as it is the shorter one."""
    if orders.window is not None:
        return AskedWindow(engine, orders.window, driver)
    return None if orders.backfill is None else AskedBackfill(engine, orders.backfill)


class AskedBackfill:
    """A backfill, with those of the tables below."""

    kind = "backfill"

    def __init__(self, engine: Engine, root: int) -> None:
        self._engine = engine
        self._root = root
        self._begun: Backfill | None = None

    @property
    def name(self) -> str:
        return f"backfill {self._root}"

    def begin(self) -> str | None:
        self._begun = backfill_queue.begin(self._engine, self._root)
        return self._begun and self._begun.table

    def work(self, worker: Worker) -> None:
        assert self._begun
        backfill.work(worker, self._begun)

    def end(self) -> None:
        backfill_queue.end(self._engine, self._root)

    def leave(self) -> None:
        backfill_queue.leave(self._engine, self._root)

    def fail(self, why: str) -> None:
        backfill_queue.fail(self._engine, self._root, why)


class AskedWindow:
    """A window of the calendar. How it went stands there."""

    kind = "maintain"

    def __init__(self, engine: Engine, number: int, driver: str) -> None:
        self._engine = engine
        self._number = number
        self._driver = driver
        self._table = ""

    @property
    def name(self) -> str:
        return f"window {self._number}"

    def begin(self) -> str | None:
        if not window_queue.take(self._engine, self._number):
            return None
        planned = windows.find(self._engine, self._number)
        if planned is None:
            raise FlowFailed(f"window {self._number} stands in no calendar: plan another, maintain.<table>")
        self._table = planned.table
        return self._table

    def work(self, worker: Worker) -> None:
        table = worker.tables.table(self._table)
        try:
            worker.keeper.take(window.leases(table))
        except SluiceError as error:
            windows.end(self._engine, self._number, "skipped", str(error))
            raise
        worker.window(table, self._number).run(worker.halt)

    def end(self) -> None:
        pass

    def leave(self) -> None:
        window_queue.leave(self._engine, self._number, self._driver)

    def fail(self, why: str) -> None:
        found = windows.find(self._engine, self._number)
        if found and found.state == "planned":
            windows.end(self._engine, self._number, "failed", why)
