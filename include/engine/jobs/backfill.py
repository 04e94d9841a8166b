"""Backfills: recompute a range of a table with today's code, then that of each downstream table, while streams go on.

Each table has one window. In the window one commit replaces the range. Flows that read the table's appends would fail
at that commit, so they read everything before it and go on behind it. If the job dies, the next try ends it.
"""

from contextlib import ExitStack, suppress
from dataclasses import replace

from sqlalchemy import Engine

from include import catalog, logs
from include.catalog import Catalog
from include.control import requesters
from include.control.jobs import backfills, store
from include.control.jobs.backfills import Backfill, Follower
from include.control.jobs.job import Job
from include.control.store import database, job_id
from include.control.store.job_id import JobId, JobKind
from include.engine import failure
from include.engine.checkpoints import definition
from include.engine.jobs import shadow_table
from include.engine.jobs.replacement import Replacement, choose_replacement, drain_readers
from include.engine.jobs.worker import Worker, open_worker
from include.errors import SluiceError, UsageError
from include.flows import resume_position
from include.flows.batches import BACKFILL
from include.lake import locations
from include.project.ranges import Slice
from include.recovery import giving_up, unseeded_generations
from include.recovery.backfill import preview, range_for_reader, readers, replacing_commit
from include.settings import settings
from include.spec import Table


def run(
    table: Table,
    tables: Catalog,
    range_: Slice,
    who: str,
    dry_run: bool,
    alone: bool = False,
    reason: str = store.BY_HAND,
) -> None:
    """Backfills a range, or with `dry_run` prints what that would do. alone: do not backfill downstream tables.
    reason: for the audit, where `who` is no run of Airflow.

    Raises UsageError if that is impossible, LeaseHeld if another job does the same, Unreachable, and FlowFailed.
    """
    if not locations.is_stored(table.name) or not any(map(resume_position.last_commit_metadata, table.flows)):
        raise UsageError(
            f"{table.name} has read nothing of its source yet: start its flow; there is nothing to backfill"
        )
    print("\n".join(preview(table, tables, range_, alone)), flush=True)
    if dry_run:
        return
    engine = database.connect(settings().control_url)
    backfills.require_not_given_up(engine, table.name, range_, who)
    if who == store.BY_HAND:
        requesters.record(engine, requesters.BACKFILL, table.name, reason, f"asked for by hand: {range_}")
    with open_worker(engine, tables, f"backfill {table.name}", [table.name]) as worker:
        requested = backfills.begin(engine, table.name, range_, who)
        BackfillJob(engine, job_id.backfill(requested.root), requested.number if alone else None).work(worker)


class BackfillJob(Job[Worker, Backfill]):
    """A requested backfill. Each table is a stage, after those that it reads; a table's end adds those below it.

    alone: the number of the backfill whose table's readers are not backfilled.
    """

    KIND, SCRIPT, MOST_TRIES = JobKind.BACKFILL, "jobs/backfill.py", 2

    def __init__(self, engine: Engine, id_: JobId, alone: int | None = None) -> None:
        super().__init__(engine, id_)
        self._alone = alone

    def plan(self, worker: Worker) -> list[Backfill]:
        order, parts = list(worker.tables.tables), []
        for part in backfills.unfinished(self.engine, self.id.number):
            if part.table not in worker.tables.tables and not catalog.has_file(part.table):
                # Others need not wait for a table that no longer exists.
                giving_up.give_up_backfill(self.engine, worker.tables, part)
            else:
                # Raises DeclarationError for a wrong file.
                worker.tables.table(part.table)
                parts.append(replace(part, alone=part.number == self._alone))
        return sorted(parts, key=lambda part: order.index(part.table))

    def run(self, worker: Worker, stage: Backfill) -> None:
        _backfill_table(worker, stage)


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
        store.enter(worker.engine, job, backfills.WAITING, f"{progress}its window is asked for")
        with (
            worker.open_window(table, job.who, f"backfill {job.number} {job.range}") as open_window,
            ExitStack() as prepared,
        ):
            _settle_dead_jobs(worker, table, job)
            if replacement and _is_pending(table, job):
                prepared.enter_context(replacement.prepare(open_window))
                drain_readers(worker, table, job)
                replacement.replace()
            _finish(worker, table, job)
    except Exception as error:
        job_error = failure.of_exception(table.name, error, table)
        with suppress(SluiceError):
            _record_failure(worker, table, job, job_error)
        raise job_error from error
    finally:
        if replacement:
            replacement.discard()


def _is_pending(table: Table, job: Backfill) -> bool:
    return replacing_commit(table.name, job) is None


def _settle_dead_jobs(worker: Worker, table: Table, job: Backfill) -> None:
    for dead_job in backfills.unfinished(worker.engine, table=table.name):
        # Others have stopped no reader, and this one holds the table's window.
        if dead_job.stopped and dead_job.number != job.number:
            _settle_dead_job(worker, table, dead_job)


def _settle_dead_job(worker: Worker, table: Table, dead_job: Backfill) -> None:
    """Finishes or fails a backfill whose job died and left readers stopped, so that these can go on."""
    if replacing_commit(table.name, dead_job):
        _finish(worker, table, dead_job)
    else:
        unseeded_generations.discard(table)
        failure_words = "its job died before it had replaced anything: run it again"
        store.record_failure(worker.engine, dead_job, failure_words, resumes_flows=True)


def _finish(worker: Worker, table: Table, job: Backfill) -> None:
    commit = replacing_commit(table.name, job)
    assert commit, "its range is replaced"
    metadata = commit.metadata[BACKFILL]
    shadow_table.finish_swap(worker.spark, table, commit)
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
        store.record_failure(worker.engine, job, str(error))
        return
    if job.range == Slice():
        unseeded_generations.discard(table)
        if error.needs_person:
            # The error may come from rows that the shadow table holds already.
            shadow_table.drop(worker.spark, table)
    store.record_failure(worker.engine, job, str(error), resumes_flows=True)
