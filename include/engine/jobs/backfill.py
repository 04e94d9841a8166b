"""Backfills: recompute a range of a table with today's code, then that of each downstream table, while streams go on.

Each table has one window. In the window one commit replaces the range. Flows that read the table's appends would fail
at that commit, so they read everything before it and go on behind it. If the job dies, the next try ends it.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from include import catalog
from include.catalog import Catalog
from include.control import lease
from include.control.jobs import backfills, windows
from include.control.jobs.backfills import Backfill, Follower
from include.control.jobs.give_up import require_not_given_up
from include.control.store import database
from include.engine import failure
from include.engine.jobs import shadow_swap, shadow_table, window
from include.engine.jobs.backfill_rows import RangeRows, compute_rows, replace_aggregate, replace_appends
from include.engine.jobs.window import Window, Worker
from include.engine.tables import create_table
from include.errors import FlowFailed, SluiceError, Unreachable, UsageError
from include.readers import position, resume_position
from include.readers.batches import BACKFILL
from include.readers.delta_backlog import StreamSource
from include.readers.delta_log import DeltaLog
from include.recovery import giving_up, unseeded_generations
from include.recovery.backfills import preview, range_for_reader, readers, replacing_commit
from include.settings import settings
from include.spec import Delta, Table, Upsert
from include.validation.slices import Slice

# A reader that does not stop in this time must not make the table's own flow wait any longer.
DRAIN_SECONDS = 180
# A reader with a short interval reads the rest in less than this; otherwise the backfill stops it first.
CATCH_UP_SECONDS = 3
LOOK_SECONDS = 0.2


def run(table: Table, tables: Catalog, range_: Slice, who: str, dry_run: bool, alone: bool = False) -> None:
    """Backfills a range, or with `dry_run` prints what that would do. alone: do not backfill downstream tables.

    Raises UsageError if that is impossible, LeaseHeld if another job does the same, Unreachable, and FlowFailed.
    """
    if not settings().is_stored(table.name) or not any(map(resume_position.last_commit_metadata, table.flows)):
        raise UsageError(f"{table.name} has read nothing of its source yet: start its flow, and nothing is to be made")
    print("\n".join(preview(table, tables, range_, alone)), flush=True)
    if dry_run:
        return
    engine = database.connect(settings().control_url)
    require_not_given_up(engine, table.name, range_, who)
    with window.open_worker(engine, tables, f"backfill {table.name}", [table.name]) as worker:
        work(worker, replace(backfills.begin(engine, table.name, range_, who), alone=alone))


def work(worker: Worker, requested: Backfill) -> None:
    """Does what is left of the backfill that was requested, each table after those that it reads."""
    order = list(worker.tables.tables)
    worker.keeper.take([backfills.lease_name(requested.root)])
    try:
        _give_up_deleted(worker, requested)
        while undone := sorted(
            backfills.unfinished_of(worker.engine, requested.root), key=lambda backfill: order.index(backfill.table)
        ):
            _do(worker, replace(undone[0], alone=requested.alone and undone[0].number == requested.number))
    finally:
        with suppress(Unreachable):
            worker.keeper.give_back([backfills.lease_name(requested.root)])


def _give_up_deleted(worker: Worker, requested: Backfill) -> None:
    """Gives up backfills of tables without a file, so that others need not wait. Raises DeclarationError for a wrong
    file.
    """
    for job in backfills.unfinished_of(worker.engine, requested.root):
        if job.table not in worker.tables.tables and not catalog.has_file(job.table):
            giving_up.give_up_backfill(worker.engine, worker.tables, job)
        else:
            worker.tables.table(job.table)


def _do(worker: Worker, job: Backfill) -> None:
    table = worker.tables.table(job.table)
    if job.range != Slice():
        _recompute(worker, table, job)
        return
    with worker.hold_leases([shadow_table.lease(table)], timeout_seconds=0):
        unseeded_generations.discard(table)
        _recompute(worker, table, job)


def _recompute(worker: Worker, table: Table, job: Backfill) -> None:
    range_rows = None
    try:
        is_pending = replacing_commit(table.name, job) is None
        uses_shadow_table = is_pending and job.range == Slice() and shadow_table.is_needed(worker.spark, table)
        if uses_shadow_table:
            progress = f"fills {shadow_table.shadow_of(table).name} from the source"
            backfills.set_phase(worker.engine, job.number, backfills.COMPUTING, progress)
            shadow_table.fill(worker, table)
        elif is_pending and not isinstance(table.write, Upsert):
            backfills.set_phase(worker.engine, job.number, backfills.COMPUTING, _progress_text(table))
            range_rows = compute_rows(worker.spark, table, job)
        count = f"{range_rows.count:,} rows are made, " if range_rows else ""
        backfills.set_phase(worker.engine, job.number, backfills.WAITING, f"{count}its window is asked for")
        put_in_place = _swap if uses_shadow_table else partial(_replace, range_rows=range_rows)
        _in_window(worker, job, table, partial(put_in_place, worker=worker, job=job))
    except Exception as error:
        job_error = failure.of_exception(table.name, error)
        with suppress(SluiceError):
            _record_failure(worker, table, job, job_error)
        raise job_error from error
    finally:
        if range_rows:
            range_rows.rows.unpersist()


def _progress_text(table: Table) -> str:
    sources = [flow.source.table for flow in table.flows if isinstance(flow.source, Delta)]
    return f"makes rows of {', '.join(dict.fromkeys(sources))}"


def _record_failure(worker: Worker, table: Table, job: Backfill, error: SluiceError) -> None:
    """Records the failure. Readers resume where they stopped, unless the range was replaced: they would fail there."""
    if replacing_commit(table.name, job) is not None:
        backfills.record_failure(worker.engine, job, str(error))
        return
    if job.range == Slice():
        unseeded_generations.discard(table)
        if error.needs_person:
            # The error may come from rows that the shadow table holds already.
            shadow_table.drop(worker.spark, table)
    backfills.fail_before_replace(worker.engine, job, str(error))


def _in_window(worker: Worker, job: Backfill, table: Table, work_in_window: Callable[[Window], None]) -> None:
    number = windows.plan(worker.engine, table.name, job.who, f"backfill {job.number} {job.range}", is_worth_it=True)
    names = window.leases(table)
    with worker.hold_leases(names, table.maintain.longest_minutes * 60):
        worker.window(table, number).run(worker.halt, work_in_window)


def _replace(open_window: Window, worker: Worker, job: Backfill, range_rows: RangeRows | None) -> None:
    """Replaces the range, inside the window."""
    table = open_window.table
    _settle_dead_jobs(worker, table, job)
    if replacing_commit(table.name, job) is None:
        create_table.create(worker.spark, table)
        metadata = open_window.begin(BACKFILL, table.name)

        def drain() -> None:
            _drain(worker, table, job)
            backfills.set_phase(worker.engine, job.number, backfills.REPLACING, "replaces its range")

        if isinstance(table.write, Upsert):
            replace_aggregate(worker.spark, table, job, metadata, drain)
        else:
            assert range_rows
            replace_appends(worker.spark, table, job, range_rows, metadata, drain)
    _finish(worker, table, job)


def _swap(open_window: Window, worker: Worker, job: Backfill) -> None:
    """Replaces all rows by those of the shadow table, inside the window. The table's own flows stop, too."""
    table = open_window.table
    _settle_dead_jobs(worker, table, job)
    metadata = open_window.begin(BACKFILL, table.name)
    flows = [flow.flow for flow in table.flows]
    backfills.stop_readers(worker.engine, job, flows)
    with worker.hold_leases([flow for flow in flows if not worker.keeper.holds(flow)], DRAIN_SECONDS):
        _drain(worker, table, job)
        shadow_table.read_to_end(worker, table)
        backfills.set_phase(
            worker.engine,
            job.number,
            backfills.REPLACING,
            f"takes over what {shadow_table.shadow_of(table).name} holds",
        )
        shadow_swap.put_in_place(worker, table, job, metadata)
        _finish(worker, table, job)


def _settle_dead_jobs(worker: Worker, table: Table, job: Backfill) -> None:
    for dead_job in backfills.interrupted(worker.engine, table.name):
        if dead_job.number != job.number:
            _settle_dead_job(worker, table, dead_job)


def _settle_dead_job(worker: Worker, table: Table, dead_job: Backfill) -> None:
    """Finishes or fails a backfill whose job died and left readers stopped, so that these can go on."""
    if replacing_commit(table.name, dead_job):
        _finish(worker, table, dead_job)
    else:
        unseeded_generations.discard(table)
        backfills.fail_before_replace(
            worker.engine, dead_job, "its job died before it had replaced anything: run it again"
        )


def _finish(worker: Worker, table: Table, job: Backfill) -> None:
    commit = replacing_commit(table.name, job)
    assert commit, "its range is replaced"
    metadata = commit.metadata[BACKFILL]
    shadow_swap.finish_swap(worker.spark, table, commit)
    rows = (metadata["rows_before"], commit.rows or 0)
    downstream = {flow.name: worker.tables.tables[flow.name] for flow in readers(worker.tables, table.name)}
    alone = metadata.get("alone", False)
    followers = [
        Follower(name, range_for_reader(reader, table, job.range, alone)) for name, reader in downstream.items()
    ]
    if any(path.exists() for path in shadow_table.places(table)):
        shadow_table.drop(worker.spark, table)
    backfills.finish(worker.engine, job, commit.version, rows, followers)
    print(f"sluice: {table.name} {job.range}: {rows[0]:,} rows before, {rows[1]:,} after", flush=True)


def _drain(worker: Worker, table: Table, job: Backfill) -> None:
    """Lets the readers read everything, then stops them. No rows arrive while the window is open."""
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
    flow_position = position.position_of(flow.flow)
    feed = StreamSource(DeltaLog(settings().table_path(table.name)), changes=False)
    return feed.behind(flow_position.offset).files if flow_position and flow_position.offset else None
