"""Backfills and maintenance windows that rows of the control database request from a running driver."""

from typing import Protocol

from sqlalchemy import Engine

from include.control.jobs import backfill_queue, window_queue, windows
from include.control.jobs.backfills import Backfill
from include.control.orders import Orders
from include.engine.jobs import backfill, window
from include.engine.jobs.window import Worker
from include.errors import FlowFailed, SluiceError


class RequestedJob(Protocol):
    """A requested job. kind: the first word of the name under which its worker holds leases.

    Every method raises Unreachable. The runner calls `end`, `leave` and `fail` again after that.
    """

    kind: str

    @property
    def name(self) -> str:
        """The name in messages, such as "backfill 3"."""

    def begin(self) -> str | None:
        """Marks the job as begun and returns its table; None if the request no longer exists."""

    def work(self, worker: Worker) -> None:
        """Does the work. worker: has a Spark session of its own and holds no lease yet."""

    def end(self) -> None:
        """Records that the job is done."""

    def leave(self) -> None:
        """Returns the request to the queue because the driver ends."""

    def fail(self, reason: str) -> None:
        """Records that the job failed."""


def next_requested(engine: Engine, orders: Orders, driver: str) -> RequestedJob | None:
    """Returns the next job: a window before a backfill, because a window is shorter."""
    if orders.window is not None:
        return RequestedWindow(engine, orders.window, driver)
    return None if orders.backfill is None else RequestedBackfill(engine, orders.backfill)


class RequestedBackfill:
    """A requested backfill, including those of downstream tables."""

    kind = "backfill"

    def __init__(self, engine: Engine, root: int) -> None:
        self._engine = engine
        self._root = root
        self._begun: Backfill | None = None

    @property
    def name(self) -> str:
        return f"backfill {self._root}"

    def begin(self) -> str | None:
        self._begun = backfill_queue.claim(self._engine, self._root)
        return self._begun.table if self._begun else None

    def work(self, worker: Worker) -> None:
        assert self._begun
        backfill.work(worker, self._begun)

    def end(self) -> None:
        backfill_queue.withdraw(self._engine, self._root)

    def leave(self) -> None:
        backfill_queue.hand_back(self._engine, self._root)

    def fail(self, reason: str) -> None:
        backfill_queue.fail(self._engine, self._root, reason)


class RequestedWindow:
    """A requested window of the calendar; the calendar records its result."""

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
        if not window_queue.claim(self._engine, self._number):
            return None
        planned_window = windows.find(self._engine, self._number)
        if planned_window is None:
            raise FlowFailed(f"window {self._number} stands in no calendar: plan another, maintain.<table>")
        self._table = planned_window.table
        return self._table

    def work(self, worker: Worker) -> None:
        table = worker.tables.table(self._table)
        try:
            worker.keeper.take(window.leases(table))
        except SluiceError as error:
            windows.close_unfinished(self._engine, self._number, "skipped", str(error))
            raise
        worker.window(table, self._number).run(worker.halt)

    def end(self) -> None:
        pass

    def leave(self) -> None:
        window_queue.hand_back(self._engine, self._number, self._driver)

    def fail(self, reason: str) -> None:
        planned_window = windows.find(self._engine, self._number)
        if planned_window and planned_window.state == "planned":
            windows.close_unfinished(self._engine, self._number, "failed", reason)
