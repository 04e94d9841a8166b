"""Rewinds a table and everything downstream to a moment: one RESTORE per table, each in its own window. The flows go on
from there in new generations of their checkpoints, and process the later rows again.

The flows stop first, and nobody else writes these tables until the rewind is done. If the job dies, the next try ends
it.
"""

from contextlib import suppress

from include import logs
from include.catalog import Catalog
from include.control.flows import resets
from include.control.flows.resets import Reset
from include.control.jobs import rewinds, stale_rows, store
from include.control.jobs.job import Job
from include.control.jobs.rewinds import Rewind
from include.control.store import database, job_id
from include.control.store.job_id import JobKind
from include.delta.commit_history import REWIND
from include.delta.delta_log import DeltaLog
from include.engine import commit, failure, sql_text
from include.engine.checkpoints import checkpoint
from include.engine.jobs import job_progress, refresh
from include.engine.jobs.maintenance_window import Window
from include.engine.jobs.worker import Worker, open_worker
from include.errors import FlowFailed, LeaseHeld, LedgerMismatch, SluiceError, Unreachable, UsageError
from include.lake import locations
from include.lake.paths import LakePath
from include.ledger import verify
from include.progress import counted
from include.project.ranges import Slice
from include.recovery import rewind_plan
from include.recovery.rewind_plan import RewindPlan
from include.settings import settings
from include.spec import Table

STEP = "rewind"


def run(
    table: Table, tables: Catalog, to: str, who: str, reason: str, dry_run: bool, approved_by: str | None = None
) -> None:
    """Plans a rewind and does it; with `dry_run`, prints what it would do. approved_by: defaults to `who`.

    Raises UsageError if the plan is refused, LeaseHeld, Unreachable, FlowFailed, and LedgerMismatch if the ledger does
    not balance afterwards.
    """
    engine = database.connect(settings().control_url)
    for begun_rewind in rewinds.unfinished(engine, [table.name]):
        raise UsageError(f"{table.name}: {begun_rewind.unfinished}")
    plan = rewind_plan.plan(engine, table, tables, to)
    print("\n".join(plan.lines()), flush=True)
    require_possible(plan)
    if plan.steps and not dry_run:
        rewind = rewinds.plan(engine, table.name, plan.moment.isoformat(), plan.cut, plan.views, who, reason)
        resume(rewind.number, tables, approved_by or who)


def require_possible(plan: RewindPlan) -> None:
    """Raises UsageError if the plan is refused."""
    if plan.refusals:
        raise UsageError(f"{plan.table} is not rewound to {plan.moment.isoformat()}: {'; '.join(plan.refusals)}")


def resume(number: int, tables: Catalog, approved_by: str | None = None) -> None:
    """Does what is left of a planned rewind. approved_by: who approved it outside Airflow.

    Raises as `run`, and UsageError if nobody has approved it.
    """
    engine = database.connect(settings().control_url)
    rewind = store.get(engine, Rewind, number)
    if rewind.ended_at is not None:
        # A retry of a task must not succeed if its first try failed.
        if rewind.state == store.GIVEN_UP:
            raise UsageError(f"rewind {number} was given up ({rewind.message}): plan another one")
        if rewind.failure:
            raise LedgerMismatch(rewind.failure)
        logs.info(f"rewind {number}: nothing done, it is done: {rewind.message}")
        return
    if approved_by and not rewind.is_begun:
        store.approve(engine, rewind, f"{approved_by}, by hand")
    store.require_approved(engine, rewind)
    with open_worker(engine, tables, f"rewind {rewind.table}", list(rewind.cut)) as worker:
        RewindJob(engine, job_id.rewind(number)).work(worker)


class RewindJob(Job[Worker, Rewind]):
    """A planned rewind. Its one stage repeats what an earlier try has done, as far as that is needed."""

    KIND, SCRIPT = JobKind.REWIND, "jobs/rewind.py"

    def plan(self, worker: Worker) -> list[Rewind]:
        rewind = store.get(self.engine, Rewind, self.id.number)
        return [rewind] if rewind.ended_at is None else []

    def run(self, worker: Worker, stage: Rewind) -> None:
        try:
            _put_back(worker, stage)
        except Exception as error:
            job_error = failure.of_exception(stage.table, error, worker.tables.tables.get(stage.table))
            with suppress(SluiceError):
                self.fail(str(job_error))
            raise job_error from error

    def fail(self, reason: str) -> None:
        """Records the failure. If no table was restored yet, gives the rewind up and lets the flows go on."""
        rewind = store.get(self.engine, Rewind, self.id.number)
        if not rewind.has_restored:
            rewinds.give_up(self.engine, rewind, reason)
        elif rewind.ended_at is None:
            store.record_failure(self.engine, rewind, reason)


def _put_back(worker: Worker, rewind: Rewind) -> None:
    tables = [worker.tables.table(name) for name in rewind.cut]
    rewinds.stop(worker.engine, rewind)
    longest_seconds = max(table.maintain.longest_minutes for table in tables) * 60
    with worker.hold_leases(rewind.flows, longest_seconds):
        if not rewind.has_restored:
            rewind = _replan(worker, rewind)
        for number, table in enumerate(tables):
            how_far = f"{counted(number, len(tables), 'tables are restored')}; next {table.name}"
            store.show(worker.engine, rewind, how_far)
            with job_progress.shown(worker, rewind, how_far):
                _in_window(worker, rewind, table)
        store.enter(worker.engine, rewind, rewinds.BEGINNING, "its flows get a place to go on from")
        _begin_generations(worker, rewind, tables)
        _require_restored(rewind, tables)
        store.enter(worker.engine, rewind, rewinds.REFRESHING, ", ".join(rewind.views) or "no view is below")
        _refresh(worker, rewind)
        difference = _difference(tables)
        imbalance = str(difference) if difference else None
        rewinds.finish(worker.engine, rewind, f"{len(tables)} tables were restored", imbalance)
    if difference:
        raise difference


def _replan(worker: Worker, rewind: Rewind) -> Rewind:
    """Plans again now that nobody writes. Raises UsageError if the plan differs from the approved one."""
    plan = rewind_plan.plan(
        worker.engine, worker.tables.table(rewind.table), worker.tables, rewind.moment, rewind.number
    )
    require_possible(plan)
    versions, approved = ({name: part.version for name, part in cut.items()} for cut in (plan.cut, rewind.cut))
    if versions != approved:
        raise UsageError(
            f"{rewind.table}: rewind {rewind.number} was planned for versions {approved}, and would go to {versions} "
            f"by now: plan it again"
        )
    rewinds.restore(worker.engine, rewind, plan.cut)
    return store.get(worker.engine, Rewind, rewind.number)


def _in_window(worker: Worker, rewind: Rewind, table: Table) -> None:
    if all(
        rewind_plan.holds_version(name, version)
        for name, version in rewind_plan.versions(rewind.cut[table.name], table).items()
    ):
        return
    with worker.open_window(table, rewind.who, f"rewind {rewind.number} to {rewind.moment}") as open_window:
        _restore(open_window, rewind)


def _restore(open_window: Window, rewind: Rewind) -> None:
    table = open_window.table
    metadata = open_window.begin(STEP, table.name)
    for name, version in rewind_plan.versions(rewind.cut[table.name], table).items():
        if rewind_plan.holds_version(name, version):
            continue
        rewind_metadata = {"number": rewind.number, "key": rewind.key, "to": version}
        with commit.user_metadata(open_window.spark, {**metadata, REWIND: rewind_metadata}, {}):
            open_window.spark.sql(f"RESTORE TABLE {sql_text.delta(_path(name))} TO VERSION AS OF {version}")
        logs.info(f"restored to version {version}", name)


def _begin_generations(worker: Worker, rewind: Rewind, tables: list[Table]) -> None:
    """Begins new generations of the flows that write or read a restored table."""
    for flow in list(rewind_plan.flows_to_renew(rewind, tables)):
        reset = Reset(flow.flow, False, rewind.who, f"rewind {rewind.number}")
        number, _ = checkpoint.begin_next_generation(worker.spark, flow, reset)
        checkpoint.release(flow.flow)
        resets.complete(worker.engine, reset, number, ())


def _require_restored(rewind: Rewind, tables: list[Table]) -> None:
    """Raises FlowFailed if a restored table does not hold exactly the files of its version."""
    for table in tables:
        for name, version in rewind_plan.versions(rewind.cut[table.name], table).items():
            log = DeltaLog(_path(name))
            expected_files, files = (
                {file.path for file in log.state_at(at_version).live} for at_version in (version, log.newest)
            )
            if expected_files != files and rewind_plan.was_restored(name, rewind):
                raise FlowFailed(
                    f"{name}: it does not hold what it held at version {version}, so somebody has written to it: look "
                    f"at `sluice inspect {table.name}`, and run the rewind again"
                )


def _path(name: str) -> LakePath:
    return locations.table_path(name)


def _refresh(worker: Worker, rewind: Rewind) -> None:
    """Refreshes the views. A view that cannot be refreshed becomes stale; the rewind goes on."""
    if not rewind.views:
        return
    try:
        views = [worker.tables.table(name) for name in rewind.views]
        run = refresh.RefreshRun.begin(f"rewind {rewind.number} {rewind.key}", views)
        for view in run.left:
            with job_progress.shown(worker, rewind, f"{run.how_far}; next {view.name}"):
                refresh.refresh_view(worker, run, view)
    except (FlowFailed, LeaseHeld, Unreachable) as error:
        reason = f"{rewind.table} was restored to {rewind.moment}, and this view was not refreshed behind that: {error}"
        with database.transaction(worker.engine) as connection:
            for name in rewind.views:
                stale_rows.mark_stale(connection, name, Slice(), reason)


def _difference(tables: list[Table]) -> LedgerMismatch | None:
    try:
        for table in tables:
            logs.info("\n".join(verify.lines(verify.verify(table))))
    except LedgerMismatch as difference:
        return difference
    return None
