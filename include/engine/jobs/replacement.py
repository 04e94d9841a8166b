"""The ways in which a backfill replaces a range of one table: appended rows, an aggregate, and a shadow table.

All have the same phases. They differ in what they compute before the window and inside it. Before a range is replaced,
the readers of the table read its appends to the end and stop.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

from include.checkpoints import checkpoint_files
from include.control.jobs import backfills, store
from include.control.jobs.backfills import Backfill
from include.control.leases import lease
from include.control.store import database
from include.delta.backlog import StreamSource
from include.delta.delta_log import DeltaLog
from include.engine.jobs import job_progress, shadow_table
from include.engine.jobs.backfill_commits import (
    Commits,
    replace_left_out,
    replace_quarantine,
    replace_retained,
    replace_table,
)
from include.engine.jobs.backfill_rows import CheckedRows, RangeRows, check_rows, compute_aggregate, compute_rows
from include.engine.jobs.maintenance_window import Window
from include.engine.jobs.worker import Worker
from include.engine.rows import transform
from include.engine.tables import create_table
from include.errors import FlowFailed
from include.flows.batches import BACKFILL
from include.lake import locations
from include.project.ranges import Slice
from include.recovery.backfill import readers
from include.spec import Flow, Table, Upsert

# A reader that does not stop in this time must not make the table's own flow wait any longer.
DRAIN_SECONDS = 180
# A reader with a short interval reads the rest in less than this; otherwise the backfill stops it first.
CATCH_UP_SECONDS = 3
LOOK_SECONDS = 0.2
REPLACES = "replaces its range"


class Replacement(Protocol):
    """The replacement of one table's range. The methods are called once each, in this order."""

    def compute(self) -> int | None:
        """Computes what needs no window, while the streams go on. Returns the number of rows, or None if uncounted."""

    def prepare(self, open_window: Window) -> AbstractContextManager[None]:
        """Computes the rest in the window, while readers still run. The context lasts until the backfill is done."""

    def replace(self) -> None:
        """Replaces the range by one commit of the table. The readers have read to the end and stopped."""

    def discard(self) -> None:
        """Releases what `compute` has kept, also after a failure."""


def choose_replacement(worker: Worker, table: Table, job: Backfill) -> Replacement:
    """Chooses how to replace the range. Only a full refresh may need a shadow table."""
    if job.range == Slice() and shadow_table.is_needed(worker.spark, table):
        return ShadowTable(worker, table, job)
    if table.is_recomputed:
        return Aggregate(worker, table, job)
    return AppendedRows(worker, table, job)


class AppendedRows:
    """Rows that the flows have appended, or changes that they have merged.

    The window only adds and checks what the flows have read meanwhile.
    """

    def __init__(self, worker: Worker, table: Table, job: Backfill) -> None:
        self._worker, self._table, self._job = worker, table, job
        self._range_rows: RangeRows | None = None
        self._checked_rows: CheckedRows
        self._metadata: dict[str, Any]

    def compute(self) -> int:
        sources = [source.table for source in self._table.upstream]
        progress = f"makes rows of {', '.join(dict.fromkeys(sources))}"
        store.enter(self._worker.engine, self._job, backfills.COMPUTING, progress)
        with job_progress.shown(self._worker, self._job, progress):
            self._range_rows = compute_rows(self._worker.spark, self._table, self._job)
        return self._range_rows.count

    @contextmanager
    def prepare(self, open_window: Window) -> Iterator[None]:
        assert self._range_rows, "compute has run"
        self._metadata = _begin(open_window)
        with ExitStack() as checked:
            with job_progress.shown(self._worker, self._job, "checks its rows"):
                rows = check_rows(self._worker.spark, self._table, self._job, self._range_rows)
                self._checked_rows = checked.enter_context(rows)
            yield

    def replace(self) -> None:
        store.enter(self._worker.engine, self._job, backfills.REPLACING, REPLACES)
        with job_progress.shown(self._worker, self._job, REPLACES):
            self._replace()

    def _replace(self) -> None:
        table, checked = self._table, self._checked_rows
        commits = Commits(table, self._job, self._metadata, checked.last_commits)
        is_needed = bool(checked.left_out.failed) or not checked.bad.isEmpty()
        if is_needed or locations.is_stored(table.quarantine):
            create_table.create_quarantine(self._worker.spark, table, self._worker.spark.sql)
            replace_quarantine(checked.bad, checked.left_out, commits)
        rows = checked.good
        if table.write.upserts:
            rows = replace_retained(rows, table.write_as(Upsert), commits)
        replace_table(transform.coalesce_small(rows, checked.kept), commits)

    def discard(self) -> None:
        if self._range_rows:
            self._range_rows.rows.unpersist()


class Aggregate:
    """The buckets of the range, or all rows of a table without buckets. All are computed in the window."""

    def __init__(self, worker: Worker, table: Table, job: Backfill) -> None:
        self._worker, self._table, self._job = worker, table, job
        self._range_rows: RangeRows
        self._metadata: dict[str, Any]

    def compute(self) -> None:
        pass

    @contextmanager
    def prepare(self, open_window: Window) -> Iterator[None]:
        self._metadata = _begin(open_window)
        with job_progress.shown(self._worker, self._job, "makes its buckets"):
            self._range_rows = compute_aggregate(self._worker.spark, self._table.single_flow, self._job)
        try:
            yield
        finally:
            self._range_rows.rows.unpersist()

    def replace(self) -> None:
        computed = self._range_rows
        commits = Commits(self._table, self._job, self._metadata, computed.last_commits)
        store.enter(self._worker.engine, self._job, backfills.REPLACING, REPLACES)
        if locations.is_stored(self._table.quarantine):
            create_table.create_quarantine(self._worker.spark, self._table, self._worker.spark.sql)
            replace_left_out(self._worker.spark, computed.left_out, commits)
        replace_table(transform.coalesce_small(computed.rows, computed.count), commits)

    def discard(self) -> None:
        pass


class ShadowTable:
    """All rows, read again from the source into a shadow table. In the window the table's own flows stop, too."""

    def __init__(self, worker: Worker, table: Table, job: Backfill) -> None:
        self._worker, self._table, self._job = worker, table, job
        self._shadow_name = shadow_table.shadow_of(table).name
        self._metadata: dict[str, Any]

    def compute(self) -> None:
        progress = f"fills {self._shadow_name} from the source"
        store.enter(self._worker.engine, self._job, backfills.COMPUTING, progress)
        flows = shadow_table.shadow_of(self._table).flows
        with job_progress.shown(self._worker, self._job, progress, lambda: job_progress.unread(flows)):
            shadow_table.fill(self._worker, self._table)

    @contextmanager
    def prepare(self, open_window: Window) -> Iterator[None]:
        worker, flows = self._worker, [flow.flow for flow in self._table.flows]
        self._metadata = open_window.begin(BACKFILL, self._table.name)
        backfills.stop_readers(worker.engine, self._job, flows)
        with worker.hold_leases([flow for flow in flows if not worker.renewer.holds(flow)], DRAIN_SECONDS):
            yield

    def replace(self) -> None:
        shadow_table.read_to_end(self._worker, self._table)
        progress = f"takes over what {self._shadow_name} holds"
        store.enter(self._worker.engine, self._job, backfills.REPLACING, progress)
        with job_progress.shown(self._worker, self._job, progress):
            shadow_table.put_in_place(self._worker, self._table, self._job, self._metadata)

    def discard(self) -> None:
        pass


def _begin(open_window: Window) -> dict[str, Any]:
    """Brings the stored table to its declaration; returns the `userMetadata` of the commits."""
    create_table.create(open_window.spark, open_window.table)
    return open_window.begin(BACKFILL, open_window.table.name)


def drain_readers(worker: Worker, table: Table, job: Backfill) -> None:
    """Lets the readers read everything, then stops them. No rows arrive while the window is open.

    Raises FlowFailed if a reader cannot read to the end, and LeaseHeld if it does not stop.
    """
    flows = readers(worker.tables, table.name)
    if not flows:
        return
    store.enter(worker.engine, job, backfills.DRAINING, ", ".join(flow.flow for flow in flows))
    _let_catch_up(worker, table, flows)
    backfills.stop_readers(worker.engine, job, [flow.flow for flow in flows])
    # A flow whose new declaration cannot continue from its checkpoint waits for a full refresh of its own.
    for flow in [flow for flow in flows if shadow_table.can_go_on(worker.spark, flow)]:
        with worker.hold_leases([flow.flow], DRAIN_SECONDS):
            # Mostly the reader is at the end already, and needs no run.
            if _unread_files(flow, table) != 0:
                worker.host.run_once([flow])
        if _unread_files(flow, table):
            raise FlowFailed(
                f"{flow.flow}: it has not read {table.name} to its end, and would stop at what a backfill replaces: "
                f"nothing was replaced; see why it does not read on, and run the backfill again"
            )


def _let_catch_up(worker: Worker, table: Table, flows: list[Flow]) -> None:
    """Waits for running readers to read the rest, which is faster than stopping and restarting them."""
    with database.reading(worker.engine) as connection:
        alive = lease.alive(connection)
    running = [flow for flow in flows if flow.flow in alive and flow.interval_seconds <= CATCH_UP_SECONDS]
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while any(_unread_files(flow, table) for flow in running) and time.monotonic() < deadline:
        threading.Event().wait(LOOK_SECONDS)


def _unread_files(flow: Flow, table: Table) -> int | None:
    """Returns how many files of `table` the flow has not read; None if it has read none."""
    flow_position = checkpoint_files.position_of(flow.flow)
    feed = StreamSource(DeltaLog(locations.table_path(table.name)), changes=False)
    return feed.behind(flow_position.offset).files if flow_position and flow_position.offset else None
