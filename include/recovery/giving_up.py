"""Gives up a rewind, a backfill or a full refresh that is not done, and says from the logs what that leaves behind.

Tables keep what the job has restored or replaced. Each flow that this affects begins a new generation after it, and
tables with wrong rows are marked STALE. Runs without a JVM.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Engine

from include.catalog import Catalog
from include.checkpoints.checkpoint_files import newest_generation
from include.control.flows import queue
from include.control.jobs import backfills, rewinds, store
from include.control.jobs.backfills import Backfill, Follower
from include.control.jobs.rewinds import PartialRewind, Rewind
from include.control.jobs.store import StoredJob
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import audit, database, job_id
from include.control.store.job_id import JobId, JobKind
from include.errors import UsageError
from include.flows.batches import BACKFILL
from include.lake import locations
from include.project.ranges import Slice
from include.recovery import rewind_plan, unseeded_generations
from include.recovery.backfill import readers, replacing_commit
from include.settings import settings

ACTION = "give up"
# How long the job's lease is held, so that no process continues the job meanwhile.
HELD_SECONDS = 300


@dataclass(frozen=True)
class Leftovers:
    """What giving up a job leaves behind. job: its lease. lines: the effects, in words. steps: one transaction each."""

    job: str
    lines: list[str]
    steps: Sequence[Callable[[], None]]


def plan(engine: Engine, tables: Catalog, job: str) -> Leftovers:
    """Returns what giving up the job leaves behind.

    job: "rewind 3", or "backfill 7", which includes all that follows it.
    Raises UsageError where there is nothing to give up, or the job's process is alive, and Unreachable.
    """
    remains = _find_remains(engine, tables, job)
    with database.reading(engine) as connection:
        if holder := lease.alive(connection).get(remains.job):
            raise UsageError(f"{job} is at work ({holder}): let it end, or end that process, and ask again")
    return remains


def carry_out(
    engine: Engine, tables: Catalog, job: str, approved: list[str], who: str, approver: str | None, reason: str
) -> str:
    """Gives the job up, and describes what was done. approved: the lines that somebody has approved.

    Raises UsageError where the lines have changed since, LeaseHeld where the job's process is alive, and Unreachable.
    """
    name = plan(engine, tables, job).job
    # The job's process may be suspended. Acquiring its lease ends it.
    holder = Holder.here(ACTION, os.getpid())
    leases = lease.acquire(engine, [name], holder, HELD_SECONDS, settings().lease_seconds)
    try:
        remains = _find_remains(engine, tables, job)
        if remains.lines != approved:
            raise UsageError(f"{job} has come further since this was asked for: ask again, and read what is left")
        for step in remains.steps:
            step()
        description = "; ".join(remains.lines)
        with database.transaction(engine) as connection:
            audit.record(connection, who, ACTION, name, reason, description, approver=approver)
    finally:
        lease.release(engine, leases)
    return description


def _find_remains(engine: Engine, tables: Catalog, job: str) -> Leftovers:
    named = JobId.parse(job)
    match named.kind:
        case JobKind.REWIND:
            return _of_rewind(engine, tables, store.get(engine, Rewind, named.number))
        case JobKind.BACKFILL:
            return _of_backfill(engine, tables, store.get(engine, Backfill, named.number))
        case JobKind.WINDOW:
            raise UsageError(f"{job} keeps no flow stopped when it has ended: nothing is to be given up")
        case _:
            return _of_other(engine, store.get(engine, StoredJob, named.number, named.kind))


def _of_other(engine: Engine, job: StoredJob) -> Leftovers:
    """Of a kind that nothing is known of here: what it has changed stays, and its flows continue where they stand."""
    _require_unfinished(job)
    lines = [f"{job.table}: what {job.id} has changed stays as it is", *_resumed_flows(job.stopped, ())]
    return Leftovers(str(job.id), lines, [partial(store.give_up, engine, job, "; ".join(lines))])


def _require_unfinished(job: StoredJob) -> None:
    if job.ended_at is not None:
        raise UsageError(f"{job.id} is {job.state}: nothing is to be given up")


def _of_rewind(engine: Engine, tables: Catalog, rewind: Rewind) -> Leftovers:
    _require_unfinished(rewind)
    halfway = _rewind_remains(tables, rewind) if rewind.has_restored else PartialRewind()
    lines = [f"{name} was restored to version {rewind.cut[name].version}, and stays so" for name in halfway.put_back]
    lines += [f"{name} is STALE: {why}" for name, why in halfway.stale.items()]
    lines = lines or ["nothing was restored"]
    lines += _resumed_flows(rewind.stopped, halfway.renewed)
    step = partial(rewinds.give_up, engine, rewind, "; ".join(lines), halfway)
    return Leftovers(str(rewind.id), lines, [step])


def _rewind_remains(tables: Catalog, rewind: Rewind) -> PartialRewind:
    put_back = [name for name in rewind.cut if locations.is_stored(name) and rewind_plan.was_restored(name, rewind)]
    again = f"rewind {rewind.table} to {rewind.moment} again"
    stale: dict[str, str] = {}
    for name, part in rewind.cut.items():
        table = tables.tables.get(name)
        if table is None or name in put_back or not locations.is_stored(name):
            continue
        missing = [
            stored_name
            for stored_name, version in rewind_plan.versions(part, table).items()
            if not rewind_plan.holds_version(stored_name, version)
        ]
        companions = rewind_plan.versions(part, table).keys() - {name}
        if missing == [name] and any(rewind_plan.was_restored(companion, rewind) for companion in companions):
            stale[name] = (
                f"its quarantine was restored and the table was not, when rewind {rewind.number} ended: {again}"
            )
        elif missing and put_back:
            stale[name] = (
                f"it holds what rewind {rewind.number} has undone above it, and its flow may fail there: {again}"
            )
    if put_back:
        stale |= dict.fromkeys(rewind.views, f"rewind {rewind.number} has rewound what it reads: refresh it")
    unaffected = [tables.tables[name] for name in rewind.cut if name in tables.tables and name not in stale]
    renewed = {flow.flow for flow in rewind_plan.flows_to_renew(rewind, unaffected)} | _undeclared(
        tables, rewind, put_back
    )
    return PartialRewind(put_back, sorted(renewed), stale)


def _undeclared(tables: Catalog, rewind: Rewind, put_back: Iterable[str]) -> set[str]:
    """Returns the flows of restored tables whose file is missing or broken. The tables may come back."""
    return {
        flow
        for name in put_back
        for flow, generation in rewind.cut[name].generations.items()
        if name not in tables.tables and (newest_generation(locations.checkpoints(flow)) or 0) <= generation
    }


def _of_backfill(engine: Engine, tables: Catalog, requested: Backfill) -> Leftovers:
    if not (parts := backfills.unfinished(engine, requested.root)):
        _require_unfinished(requested)
    lines, root = [line for part in parts for line in _part_lines(tables, part)], job_id.backfill(requested.root)
    steps = [
        partial(queue.withdraw, engine, root),
        *(partial(give_up_backfill, engine, tables, part) for part in parts),
    ]
    return Leftovers(str(root), lines, steps)


def _part_lines(tables: Catalog, part: Backfill) -> Iterator[str]:
    commit = replacing_commit(part.table, part)
    if commit is None:
        suffix = "" if part.number == part.root else ", and is STALE as before"
        yield f"{part.table} {part.range}: nothing was replaced, it stays as it is{suffix}"
        yield from _resumed_flows(part.stopped, ())
        return
    yield f"{part.table} {part.range}: replaced by version {commit.version}, and stays so"
    readers_below = sorted({flow.name for flow in readers(tables, part.table)})
    yield from (f"{name} is STALE: it was made of what {part.table} held before" for name in readers_below)
    yield from _resumed_flows(part.stopped, [flow.flow for flow in readers(tables, part.table)])
    table = tables.tables.get(part.table)
    for flow in table.flows if table else ():
        if unseeded_generations.lacks_seed_commit(flow):
            yield f"{flow.flow} does not start until a full refresh of {part.table} has ended: run it again"


def give_up_backfill(engine: Engine, tables: Catalog, part: Backfill) -> None:
    """Ends one table's part of a backfill. The caller holds the job's lease."""
    commit, reason = replacing_commit(part.table, part), f"backfill {part.root} was given up"
    if commit is not None:
        names_below = sorted({flow.name for flow in readers(tables, part.table)})
        rows = (commit.metadata[BACKFILL]["rows_before"], commit.rows or 0)
        followers = [Follower(name, f"{reason}: backfill {name}") for name in names_below]
        definitions = commit.metadata[BACKFILL].get("definitions", {})
        backfills.finish(engine, part, commit.version, rows, followers, definitions)
        return
    if part.range == Slice() and part.table in tables.tables and locations.is_stored(part.table):
        unseeded_generations.discard(tables.tables[part.table])
    with database.transaction(engine) as connection:
        backfills.give_up(connection, part, reason)


def _resumed_flows(stopped: dict[str, tuple[str, str]], renewed: Iterable[str]) -> Iterator[str]:
    for flow, (state, _) in sorted(stopped.items()):
        yield f"{flow} is {state} again{', in a new generation behind that' if flow in renewed else ''}"
