"""Gives up a rewind, a backfill or a full refresh that is not done: says what that leaves behind, by the logs.

Without a JVM. What a job has put back or replaced stays so: each flow that this concerns begins a new generation behind
it, and a table that is not as it should be is STALE.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Engine

from include.catalog import Catalog
from include.control import commands, lease
from include.control.jobs import backfill_queue, backfills, giving_up, rewinds
from include.control.jobs.backfills import Backfill, Follower
from include.control.jobs.giving_up import Halfway
from include.control.jobs.rewinds import Rewind
from include.control.process import Holder
from include.control.store import database
from include.errors import UsageError
from include.readers.batches import BACKFILL
from include.readers.checkpoint import newest_generation
from include.recovery import rewind_state, unseeded_generations
from include.recovery.backfills import readers, replaced_by
from include.settings import settings
from include.validation.slices import Slice

ACTION = "give up"
# Nobody goes on with the job while it is given up.
HELD_SECONDS = 300


@dataclass(frozen=True)
class Remains:
    """job: its lease. lines: what giving it up leaves behind, in words. steps: a transaction each."""

    job: str
    lines: list[str]
    steps: Sequence[Callable[[], None]]


def plan(engine: Engine, tables: Catalog, job: str) -> Remains:
    """job: "rewind 3", or "backfill 7", with all that follows it.

    Raises UsageError where there is none to be given up, because it is done or its process lives, and Unreachable.
    """
    found = _remains(engine, tables, job)
    with database.reading(engine) as connection:
        if holder := lease.alive(connection).get(found.job):
            raise UsageError(f"{job} is at work ({holder}): let it end, or end that process, and ask again")
    return found


def carry_out(engine: Engine, tables: Catalog, job: str, approved: list[str], who: str, reason: str) -> str:
    """approved: the lines that somebody has approved. Returns what was done, in words.

    Raises UsageError where it has come further since, LeaseHeld where its process lives, and Unreachable.
    """
    name = plan(engine, tables, job).job
    # Its process may be asleep: whoever takes its lease ends it.
    taken = lease.acquire(engine, [name], Holder.here(ACTION, os.getpid()), HELD_SECONDS)
    try:
        found = _remains(engine, tables, job)
        if found.lines != approved:
            raise UsageError(f"{job} has come further since this was asked for: ask again, and read what is left")
        for step in found.steps:
            step()
        said = "; ".join(found.lines)
        with database.transaction(engine) as connection:
            commands.record(connection, who, ACTION, name, reason, said)
    finally:
        lease.release(engine, taken)
    return said


def _remains(engine: Engine, tables: Catalog, job: str) -> Remains:
    named = re.fullmatch("(rewind|backfill) ([0-9]{1,9})", job)
    if not named:
        raise UsageError(f"job is {job!r}: name it as `python -m include.ledger backfills` or `rewinds` does: rewind 3")
    if named[1] == "rewind":
        return _of_rewind(engine, tables, rewinds.get(engine, int(named[2])))
    return _of_backfill(engine, tables, int(named[2]))


def _of_rewind(engine: Engine, tables: Catalog, one: Rewind) -> Remains:
    if one.ended_at is not None:
        raise UsageError(f"rewind {one.number} is {one.phase}: nothing is to be given up")
    is_behind = one.phase not in (rewinds.PLANNED, rewinds.STOPPING)
    left = _halfway(tables, one) if is_behind else Halfway()
    lines = [f"{name} was put back to version {one.cut[name].version}, and stays so" for name in left.put_back]
    lines += [f"{name} is STALE: {why}" for name, why in left.stale.items()]
    lines = lines or ["nothing was put back"]
    lines += _goes_on(one.stopped, left.anew)

    def end() -> None:
        with database.transaction(engine) as connection:
            giving_up.rewind(connection, one, "; ".join(lines), left)

    return Remains(rewinds.of_job(one.number), lines, [end])


def _halfway(tables: Catalog, one: Rewind) -> Halfway:
    put_back = [name for name in one.cut if settings().is_stored(name) and rewind_state.was_put_back(name, one)]
    again = f"rewind {one.table} to {one.moment} again"
    left: dict[str, str] = {}
    for name, part in one.cut.items():
        table = tables.tables.get(name)
        if table is None or name in put_back or not settings().is_stored(name):
            continue
        missing = [
            each
            for each, version in rewind_state.versions(part, table).items()
            if not rewind_state.is_there(each, version)
        ]
        if missing == [name] and part.quarantine is not None and rewind_state.was_put_back(table.quarantine, one):
            left[name] = f"its quarantine was put back and the table was not, when rewind {one.number} ended: {again}"
        elif missing and put_back:
            left[name] = f"it holds what rewind {one.number} has undone above it, and its flow may fail there: {again}"
    if put_back:
        left |= dict.fromkeys(one.views, f"rewind {one.number} has put back what it reads: refresh it")
    right = [tables.tables[name] for name in one.cut if name in tables.tables and name not in left]
    anew = {flow.flow for flow in rewind_state.owed(one, right)} | _undeclared(tables, one, put_back)
    return Halfway(put_back, sorted(anew), left)


def _undeclared(tables: Catalog, one: Rewind, put_back: Iterable[str]) -> set[str]:
    """Flows of tables that have no file at the moment, or a broken one: they may come back."""
    return {
        flow
        for name in put_back
        for flow, before in one.cut[name].generations.items()
        if name not in tables.tables and (newest_generation(settings().checkpoints(flow)) or 0) <= before
    }


def _of_backfill(engine: Engine, tables: Catalog, number: int) -> Remains:
    asked = backfills.find(engine, number)
    if not (left := backfills.undone(engine, asked.root)):
        raise UsageError(f"backfill {number} is {asked.phase}: nothing is to be given up")
    lines = [line for one in left for line in _lines(tables, one)]
    steps = [partial(backfill_queue.end, engine, asked.root), *(partial(backfill, engine, tables, one) for one in left)]
    return Remains(backfills.of_job(asked.root), lines, steps)


def _lines(tables: Catalog, one: Backfill) -> Iterator[str]:
    made = replaced_by(one.table, one)
    if made is None:
        follows = "" if one.number == one.root else ", and is STALE as before"
        yield f"{one.table} {one.range}: nothing was replaced, it stays as it is{follows}"
        yield from _goes_on(one.readers, ())
        return
    yield f"{one.table} {one.range}: replaced by version {made.version}, and stays so"
    below = sorted({flow.name for flow in readers(tables, one.table)})
    yield from (f"{name} is STALE: it was made of what {one.table} held before" for name in below)
    yield from _goes_on(one.readers, [flow.flow for flow in readers(tables, one.table)])
    table = tables.tables.get(one.table)
    for flow in table.flows if table else ():
        if unseeded_generations.awaits_its_seed(flow):
            yield f"{flow.flow} does not start until a full refresh of {one.table} has ended: run it again"


def backfill(engine: Engine, tables: Catalog, one: Backfill) -> None:
    """End one table's part of a backfill. The caller holds the lease of the job."""
    made, said = replaced_by(one.table, one), f"backfill {one.root} was given up"
    if made is not None:
        below = sorted({flow.name for flow in readers(tables, one.table)})
        rows = (made.metadata[BACKFILL]["rows_before"], made.rows or 0)
        backfills.finish(
            engine, one, made.version, rows, [Follower(name, f"{said}: backfill {name}") for name in below]
        )
        return
    if one.range == Slice() and one.table in tables.tables and settings().is_stored(one.table):
        unseeded_generations.forget(tables.tables[one.table])
    with database.transaction(engine) as connection:
        giving_up.backfill(connection, one, said)


def _goes_on(stopped: dict[str, tuple[str, str]], anew: Iterable[str]) -> Iterator[str]:
    for flow, (state, _) in sorted(stopped.items()):
        yield f"{flow} is {state} again{', in a new generation behind that' if flow in anew else ''}"
