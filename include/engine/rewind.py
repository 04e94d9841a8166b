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
from include.control import database, lease, resets, rewinds, stale, windows
from include.control.resets import Reset
from include.control.rewinds import Rewind
from include.declaration.slices import Slice
from include.engine import checkpoint, commit, failure, refresh, window
from include.engine.window import Window, Worker
from include.errors import FlowFailed, LeaseHeld, SluiceError, Unbalanced, Unreachable, UsageError
from include.ledger import rewinding, verification
from include.ledger.checkpoint import newest_generation
from include.ledger.log import Log
from include.ledger.rewinding import Plan
from include.ledger.standing import REWIND
from include.ledger.timeline import Timeline
from include.settings import settings
from include.spec import Table

STEP = "rewind"


def run(table: Table, tables: Catalog, to: str, who: str, reason: str, dry_run: bool) -> None:
    """Plan a rewind and do it, or end the same one that has begun; with `dry_run`, say what it would do.

    Raises UsageError where it is refused, LeaseHeld, Unreachable, FlowFailed, and Unbalanced where the ledger finds a
    difference behind it.
    """
    engine = database.connect(settings().control_url)
    for left in rewinds.begun(engine, [table.name]):
        raise UsageError(
            f"{table.name}: rewind {left.number} of {left.table} to {left.moment} has begun and is not done: end it "
            f"first, spark-submit jobs/rewind.py --number {left.number}"
        )
    found = rewinding.plan(engine, table, tables, to)
    print("\n".join(found.lines()), flush=True)
    require_possible(found)
    if found.steps and not dry_run:
        number = rewinds.plan(engine, table.name, found.moment.isoformat(), found.cut, found.views, who, reason).number
        resume(number, tables)


def require_possible(found: Plan) -> None:
    """Raises UsageError where the plan is refused."""
    if found.refusals:
        raise UsageError(f"{found.table} is not put back to {found.moment.isoformat()}: {'; '.join(found.refusals)}")


def resume(number: int, tables: Catalog) -> None:
    """Do what is left to do of a rewind that was planned. Raises as `run`."""
    engine = database.connect(settings().control_url)
    asked = rewinds.get(engine, number)
    if asked.ended_at is not None:
        # A retry of a task must not go green where its first try did not.
        if asked.phase == rewinds.GIVEN_UP:
            raise UsageError(f"rewind {number} was given up, and nothing was put back ({asked.said}): plan another one")
        if asked.failure:
            raise Unbalanced(asked.failure)
        print(f"sluice: rewind {number}: nothing done, it is done: {asked.said}", flush=True)
        return
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
    with own.taking(asked.flows, longest_seconds):
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
    found = rewinding.plan(own.engine, own.tables.table(asked.table), own.tables, asked.moment)
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
    if all(_is_there(name, version) for name, version in _versions(asked, table).items()):
        return
    number = windows.plan(own.engine, table.name, asked.who, f"rewind {asked.number} to {asked.moment}", True)
    with own.taking([lease.of_window(table.name)], table.maintain.longest_minutes * 60):
        own.window(table, number).run(own.halt, partial(_restore, asked=asked))


def _versions(asked: Rewind, table: Table) -> dict[str, int]:
    """Where its quarantine and itself go back to; the quarantine first, as in a batch."""
    part = asked.cut[table.name]
    quarantine = {} if part.quarantine is None else {table.quarantine: part.quarantine}
    return quarantine | {table.name: part.version}


def _is_there(name: str, version: int) -> bool:
    """Whether the table holds what it held at that version; what only moved rows since stays."""
    line = Timeline(name)
    return line.content(line.versions[-1]) == line.content(version)


def _restore(opened: Window, asked: Rewind) -> None:
    table = opened.table
    stamp = opened.begin(STEP, table.name)
    for name, version in _versions(asked, table).items():
        if _is_there(name, version):
            continue
        said = {"number": asked.number, "key": asked.key, "to": version}
        with commit.stamped(opened.spark, {**stamp, REWIND: said}, {}):
            opened.spark.sql(f"RESTORE TABLE delta.`{_path(name)}` TO VERSION AS OF {version}")
        print(f"sluice: {name} is put back to version {version}", flush=True)


def _begin_generations(own: Worker, asked: Rewind, tables: list[Table]) -> None:
    """Of the flows that write a table that was put back, and of those that read one."""
    touched = {table.name for table in tables if _was_put_back(table.name, asked)}
    for table in tables:
        if table.name not in touched and not rewinding.reads(table, touched):
            continue
        for flow in table.flows:
            before = asked.cut[table.name].generations.get(flow.flow)
            newest = newest_generation(settings().checkpoints(flow.flow))
            if before is None or newest is None or newest > before:
                continue
            reset = Reset(flow.flow, False, asked.who, f"rewind {asked.number}")
            number, _ = checkpoint.renew(own.spark, flow, reset)
            checkpoint.release(flow.flow)
            resets.done(own.engine, reset, number, ())


def _was_put_back(name: str, asked: Rewind) -> bool:
    return any((one.metadata.get(REWIND) or {}).get("key") == asked.key for one in Log(_path(name)).commits())


def _require_right(asked: Rewind, tables: list[Table]) -> None:
    """That what was put back holds the very files of its version."""
    for table in tables:
        for name, version in _versions(asked, table).items():
            log = Log(_path(name))
            then, now = ({one.path for one in log.state_at(at).live} for at in (version, log.newest))
            if then != now and _was_put_back(name, asked):
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
                stale.mark(connection, name, Slice(), why)


def _difference(tables: list[Table]) -> Unbalanced | None:
    try:
        for table in tables:
            print("\n".join(verification.lines(verification.verify(table))), flush=True)
    except Unbalanced as difference:
        return difference
    return None
