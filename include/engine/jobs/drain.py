"""Drains the readers of a table: they read its appends to the end and stop, so that a backfill can replace rows."""

import threading
import time

from include.checkpoints import checkpoint_files
from include.control import lease
from include.control.jobs import backfills
from include.control.jobs.backfills import Backfill
from include.control.store import database
from include.delta.backlog import StreamSource
from include.delta.delta_log import DeltaLog
from include.engine.jobs import shadow_table
from include.engine.jobs.window import Worker
from include.errors import FlowFailed
from include.recovery.backfill import readers
from include.settings import settings
from include.spec import Table

# A reader that does not stop in this time must not make the table's own flow wait any longer.
DRAIN_SECONDS = 180
# A reader with a short interval reads the rest in less than this; otherwise the backfill stops it first.
CATCH_UP_SECONDS = 3
LOOK_SECONDS = 0.2


def drain_readers(worker: Worker, table: Table, job: Backfill) -> None:
    """Lets the readers read everything, then stops them. No rows arrive while the window is open.

    Raises FlowFailed if a reader cannot read to the end, and LeaseHeld if it does not stop.
    """
    flows = readers(worker.tables, table.name)
    if not flows:
        return
    backfills.set_phase(worker.engine, job.number, backfills.DRAINING, ", ".join(flow.flow for flow in flows))
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


def _let_catch_up(worker: Worker, table: Table, flows: list[Table]) -> None:
    """Waits for running readers to read the rest, which is faster than stopping and restarting them."""
    with database.reading(worker.engine) as connection:
        alive = lease.alive(connection)
    running = [flow for flow in flows if flow.flow in alive and flow.interval_seconds <= CATCH_UP_SECONDS]
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while any(_unread_files(flow, table) for flow in running) and time.monotonic() < deadline:
        threading.Event().wait(LOOK_SECONDS)


def _unread_files(flow: Table, table: Table) -> int | None:
    """Returns how many files of `table` the flow has not read; None if it has read none."""
    flow_position = checkpoint_files.position_of(flow.flow)
    feed = StreamSource(DeltaLog(settings().table_path(table.name)), changes=False)
    return feed.behind(flow_position.offset).files if flow_position and flow_position.offset else None
