"""Backfills: recompute a range of a table with today's code, then that of each downstream table, while streams go on.

Each table has one window. In the window one commit replaces the range. Flows that read the table's appends would fail
at that commit, so they read everything before it and go on behind it. If the job dies, the next try ends it.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace

from include import catalog, logs
from include.catalog import Catalog
from include.control.jobs import backfills, windows
from include.control.jobs.backfills import Backfill, Follower
from include.control.store import database
from include.engine import failure
from include.engine.checkpoints import definition
from include.engine.jobs import shadow_swap, shadow_table, window
from include.engine.jobs.drain import drain_readers
from include.engine.jobs.replacement import Replacement, choose_replacement
from include.engine.jobs.table_window import Window
from include.engine.jobs.window import Worker
from include.errors import SluiceError, Unreachable, UsageError
from include.flows import resume_position
from include.flows.batches import BACKFILL
from include.project.ranges import Slice
from include.recovery import giving_up, unseeded_generations
from include.recovery.backfill import preview, range_for_reader, readers, replacing_commit
from include.settings import settings
from include.spec import Table


def run(table: Table, tables: Catalog, range_: Slice, who: str, dry_run: bool, alone: bool = False) -> None:
    """Backfills a range, or with `dry_run` prints what that would do. alone: do not backfill downstream tables.

    Raises UsageError if that is impossible, LeaseHeld if another job does the same, Unreachable, and FlowFailed.
    """
    if not settings().is_stored(table.name) or not any(map(resume_position.last_commit_metadata, table.flows)):
        raise UsageError(
            f"{table.name} has read nothing of its source yet: start its flow; there is nothing to backfill"
        )
    print("\n".join(preview(table, tables, range_, alone)), flush=True)
    if dry_run:
        return
    engine = database.connect(settings().control_url)
    backfills.require_not_given_up(engine, table.name, range_, who)
    with window.open_worker(engine, tables, f"backfill {table.name}", [table.name]) as worker:
        work(worker, replace(backfills.begin(engine, table.name, range_, who), alone=alone))


def work(worker: Worker, requested: Backfill) -> None:
    """Does what is left of the backfill that was requested, each table after those that it reads."""
    order = list(worker.tables.tables)
    worker.renewer.take([backfills.lease_name(requested.root)])
    try:
        _give_up_deleted(worker, requested)
        while undone := sorted(
            backfills.unfinished_of(worker.engine, requested.root), key=lambda backfill: order.index(backfill.table)
        ):
            _backfill_table(worker, replace(undone[0], alone=requested.alone and undone[0].number == requested.number))
    finally:
        with suppress(Unreachable):
            worker.renewer.give_back([backfills.lease_name(requested.root)])


def _give_up_deleted(worker: Worker, requested: Backfill) -> None:
    """Gives up backfills of tables without a file, so that others need not wait. Raises DeclarationError for a wrong
    file.
    """
    for job in backfills.unfinished_of(worker.engine, requested.root):
        if job.table not in worker.tables.tables and not catalog.has_file(job.table):
            giving_up.give_up_backfill(worker.engine, worker.tables, job)
        else:
            worker.tables.table(job.table)


def _backfill_table(worker: Worker, job: Backfill) -> None:
    table = worker.tables.table(job.table)
    job = replace(job, definitions=_definitions(worker.tables, table))
    if job.range != Slice():
        _run_phases(worker, table, job)
        return
    with worker.hold_leases([shadow_table.lease(table)], timeout_seconds=0):
        unseeded_generations.discard(table)
        _run_phases(worker, table, job)


def _definitions(tables: Catalog, table: Table) -> dict[str, str]:
    """Returns by flow what determines the rows that this job makes; nothing where the table file has changed since."""
    with catalog.TABLE_FILES:
        definitions = {flow.flow: definition.rows_fingerprint(flow) for flow in table.flows}
        return definitions if tables.is_current(table) else {}


def _run_phases(worker: Worker, table: Table, job: Backfill) -> None:
    """Runs the phases of one table in order. If an earlier try has replaced the range, only the finish is left."""
    replacement: Replacement | None = None
    try:
        if _is_pending(table, job):
            replacement = choose_replacement(worker, table, job)
        count = replacement.compute() if replacement else None
        progress = "" if count is None else f"{count:,} rows are made, "
        backfills.set_phase(worker.engine, job.number, backfills.WAITING, f"{progress}its window is asked for")
        with _open_window(worker, table, job) as open_window, ExitStack() as prepared:
            _settle_dead_jobs(worker, table, job)
            if replacement and _is_pending(table, job):
                prepared.enter_context(replacement.prepare(open_window))
                drain_readers(worker, table, job)
                replacement.replace()
            _finish(worker, table, job)
    except Exception as error:
        job_error = failure.of_exception(table.name, error)
        with suppress(SluiceError):
            _record_failure(worker, table, job, job_error)
        raise job_error from error
    finally:
        if replacement:
            replacement.discard()


def _is_pending(table: Table, job: Backfill) -> bool:
    return replacing_commit(table.name, job) is None


@contextmanager
def _open_window(worker: Worker, table: Table, job: Backfill) -> Iterator[Window]:
    number = windows.plan(worker.engine, table.name, job.who, f"backfill {job.number} {job.range}", is_worth_it=True)
    with (
        worker.hold_leases(window.leases(table), table.maintain.longest_minutes * 60),
        worker.window(table, number).open(worker.halt) as open_window,
    ):
        yield open_window


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
    if any(path.is_dir() for path in shadow_table.places(table)):
        shadow_table.drop(worker.spark, table)
    backfills.finish(worker.engine, job, commit.version, rows, followers, metadata.get("definitions", {}))
    logs.info(f"{job.range}: {rows[0]:,} rows before, {rows[1]:,} after", table.name)


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
