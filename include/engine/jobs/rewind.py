"""Puts a table and all that is made of it back to a moment, each by one RESTORE in a window of its own; its flows go on
from there, in new generations of their checkpoints, and make again what was undone.

The flows stop first, and nobody else writes these tables until all of it is done: a job that dies in the middle is
ended by the next try.
"""

from contextlib import suppress
from functools import partial
from pathlib import Path

from sqlalchemy import Engine

from include.catalog import Catalog
from include.control import lease, resets
from include.control.jobs import approvals, rewinds, stale_tables, windows
from include.control.jobs.rewinds import Rewind
from include.control.resets import Reset
from include.control.store import database
from include.engine import failure
from include.engine.checkpoints import checkpoint
from include.engine.jobs import refresh, window
from include.engine.jobs.window import Window, Worker
from include.engine.tables import commit
from include.errors import FlowFailed, LeaseHeld, SluiceError, Unbalanced, Unreachable, UsageError
from include.ledger import verify
from include.readers.active_commits import REWIND
from include.readers.delta_log import Log
from include.recovery import rewind_plan, rewind_state
from include.recovery.rewind_plan import RewindPlan
from include.settings import settings
from include.spec import Table
from include.validation.slices import Slice

STEP = "rewind"


def run(
    table: Table, tables: Catalog, to: str, who: str, reason: str, dry_run: bool, approved_by: str | None = None
) -> None:
    """Plan a rewind and do it; with `dry_run`, say what it would do. approved_by: else who asks for it does.

    Raises UsageError where it is refused, LeaseHeld, Unreachable, FlowFailed, and Unbalanced where the ledger finds a
    difference behind it.
    """
    engine = database.connect(settings().control_url)
    for left in rewinds.begun(engine, [table.name]):
        raise UsageError(f"{table.name}: {left.unfinished}")
    found = rewind_plan.plan(engine, table, tables, to)
    print("\n".join(found.lines()), flush=True)
    require_possible(found)
    if found.steps and not dry_run:
        asked = rewinds.plan(engine, table.name, found.moment.isoformat(), found.cut, found.views, who, reason)
        resume(asked.number, tables, approved_by or who)


def require_possible(found: RewindPlan) -> None:
    """Raises UsageError where the plan is refused."""
    if found.refusals:
        raise UsageError(f"{found.table} is not put back to {found.moment.isoformat()}: {'; '.join(found.refusals)}")


def resume(number: int, tables: Catalog, approved_by: str | None = None) -> None:
    """Do what is left to do of a rewind that was planned. approved_by: where that was not in Airflow.

    Raises as `run`, and UsageError where nobody has approved it.
    """
    engine = database.connect(settings().control_url)
    asked = rewinds.get(engine, number)
    if asked.ended_at is not None:
        # A retry of a task must not go green where its first try did not.
        if asked.phase == rewinds.GIVEN_UP:
            raise UsageError(f"rewind {number} was given up ({asked.said}): plan another one")
        if asked.failure:
            raise Unbalanced(asked.failure)
        print(f"sluice: rewind {number}: nothing done, it is done: {asked.said}", flush=True)
        return
    if approved_by and not asked.is_begun:
        approvals.approve(engine, asked, f"{approved_by}, by hand")
    approvals.require(engine, asked)
    with window.worker(engine, tables, f"rewind {asked.table}", list(asked.cut)) as own:
        work(own, number)


def work(own: Worker, number: int) -> None:
    """The same in a session that there is."""
    own.keeper.take([rewinds.of_job(number)])
    try:
        asked = rewinds.get(own.engine, number)
        if asked.ended_at is None:
            try:
                _do(own, asked)
            except Exception as error:
                named = failure.of_exception(asked.table, error)
                with suppress(SluiceError):
                    _note(own.engine, number, named)
                raise named from error
    finally:
        with suppress(Unreachable):
            own.keeper.give_back([rewinds.of_job(number)])


def _note(engine: Engine, number: int, error: SluiceError) -> None:
    """Where nothing was put back yet, the flows go on as if nothing had been asked."""
    now = rewinds.get(engine, number)
    if now.phase in (rewinds.PLANNED, rewinds.STOPPING):
        rewinds.give_up(engine, now, str(error))
    elif now.ended_at is None:
        rewinds.note(engine, now, str(error))


def _do(own: Worker, asked: Rewind) -> None:
    tables = [own.tables.table(name) for name in asked.cut]
    rewinds.stop(own.engine, asked)
    longest_seconds = max(table.maintain.longest_minutes for table in tables) * 60
    with own.acquired_leases(asked.flows, longest_seconds):
        if asked.phase in (rewinds.PLANNED, rewinds.STOPPING):
            asked = _planned_anew(own, asked)
        for table in tables:
            _in_window(own, asked, table)
        rewinds.say(own.engine, asked.number, rewinds.BEGINNING, "its flows get a place to go on from")
        _begin_generations(own, asked, tables)
        _require_right(asked, tables)
        rewinds.say(own.engine, asked.number, rewinds.REFRESHING, ", ".join(asked.views) or "no view is below")
        _refresh(own, asked)
        difference = _difference(tables)
        why = str(difference) if difference else None
        rewinds.finish(own.engine, asked, f"{len(tables)} tables were put back", why)
    if difference:
        raise difference


def _planned_anew(own: Worker, asked: Rewind) -> Rewind:
    """By what there is now that nobody writes any more. Raises UsageError where that is not what was approved."""
    found = rewind_plan.plan(own.engine, own.tables.table(asked.table), own.tables, asked.moment, asked.number)
    require_possible(found)
    versions, approved = ({name: part.version for name, part in cut.items()} for cut in (found.cut, asked.cut))
    if versions != approved:
        raise UsageError(
            f"{asked.table}: rewind {asked.number} was planned for versions {approved}, and would go to {versions} by "
            f"now: plan it again"
        )
    rewinds.restore(own.engine, asked, found.cut)
    return rewinds.get(own.engine, asked.number)


def _in_window(own: Worker, asked: Rewind, table: Table) -> None:
    if all(
        rewind_state.is_there(name, version)
        for name, version in rewind_state.versions(asked.cut[table.name], table).items()
    ):
        return
    number = windows.plan(own.engine, table.name, asked.who, f"rewind {asked.number} to {asked.moment}", True)
    with own.acquired_leases([lease.of_window(table.name)], table.maintain.longest_minutes * 60):
        own.window(table, number).run(own.halt, partial(_restore, asked=asked))


def _restore(opened: Window, asked: Rewind) -> None:
    table = opened.table
    stamp = opened.begin(STEP, table.name)
    for name, version in rewind_state.versions(asked.cut[table.name], table).items():
        if rewind_state.is_there(name, version):
            continue
        said = {"number": asked.number, "key": asked.key, "to": version}
        with commit.stamped(opened.spark, {**stamp, REWIND: said}, {}):
            opened.spark.sql(f"RESTORE TABLE delta.`{_path(name)}` TO VERSION AS OF {version}")
        print(f"sluice: {name} is put back to version {version}", flush=True)


def _begin_generations(own: Worker, asked: Rewind, tables: list[Table]) -> None:
    """Of the flows that write a table that was put back, and of those that read one."""
    for flow in list(rewind_state.owed(asked, tables)):
        reset = Reset(flow.flow, False, asked.who, f"rewind {asked.number}")
        number, _ = checkpoint.renew(own.spark, flow, reset)
        checkpoint.release(flow.flow)
        resets.done(own.engine, reset, number, ())


def _require_right(asked: Rewind, tables: list[Table]) -> None:
    """That what was put back holds the very files of its version."""
    for table in tables:
        for name, version in rewind_state.versions(asked.cut[table.name], table).items():
            log = Log(_path(name))
            then, now = ({one.path for one in log.state_at(at).live} for at in (version, log.newest))
            if then != now and rewind_state.was_put_back(name, asked):
                raise FlowFailed(
                    f"{name}: it does not hold what it held at version {version}, so somebody has written to it: look "
                    f"at `python -m include.ledger inspect {table.name}`, and run the rewind again"
                )


def _path(name: str) -> Path:
    return settings().table_path(name)


def _refresh(own: Worker, asked: Rewind) -> None:
    """A view that cannot be refreshed is stale, and keeps nobody else from going on."""
    if not asked.views:
        return
    try:
        views = [own.tables.table(name) for name in asked.views]
        refresh.do(own, refresh.Run.begin(f"rewind {asked.number} {asked.key}", views))
    except (FlowFailed, LeaseHeld, Unreachable) as error:
        why = f"{asked.table} was put back to {asked.moment}, and this view was not refreshed behind that: {error}"
        with database.transaction(own.engine) as connection:
            for name in asked.views:
                stale_tables.mark(connection, name, Slice(), why)


def _difference(tables: list[Table]) -> Unbalanced | None:
    try:
        for table in tables:
            print("\n".join(verify.lines(verify.verify(table))), flush=True)
    except Unbalanced as difference:
        return difference
    return None
