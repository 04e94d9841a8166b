"""Backfills: a range of a table made again by today's code, then that of each table below it, while streams go on.

Each table has one window. In it the range is replaced by one commit; the flows that read the table's appends, which
would stop at that commit, have read all before it and go on behind it. Whatever kills the job, the next try ends it.
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
from include.control.jobs.giving_up import require_wanted
from include.control.store import database
from include.engine import failure
from include.engine.jobs import shadow_swap, shadow_table, window
from include.engine.jobs.backfill_rows import Made, make, replace_aggregate, replace_appends
from include.engine.jobs.window import Window, Worker
from include.engine.tables import create_table
from include.errors import FlowFailed, SluiceError, Unreachable, UsageError
from include.readers import position, resume_position
from include.readers.batches import BACKFILL
from include.readers.delta_backlog import Feed
from include.readers.delta_log import Log
from include.recovery import giving_up, unseeded_generations
from include.recovery.backfills import readers, rehearsal, replaced_by, that_follows
from include.settings import settings
from include.spec import Delta, Table, Upsert
from include.validation.slices import Slice

# A reader that does not stop by then must not make the table's own flow wait for longer.
DRAIN_SECONDS = 180
# A reader that runs takes less than this to read what is left, or it is stopped before it has.
CATCH_UP_SECONDS = 3
LOOK_SECONDS = 0.2


def run(table: Table, tables: Catalog, range_: Slice, who: str, dry_run: bool, alone: bool = False) -> None:
    """Make a range again, or say what that would do. alone: the tables below are not to follow.

    Raises UsageError where that is impossible, LeaseHeld where another job does the same, Unreachable, and FlowFailed
    where it fails before the range is replaced.
    """
    if not settings().is_stored(table.name) or not any(map(resume_position.last_stamp, table.flows)):
        raise UsageError(f"{table.name} has read nothing of its source yet: start its flow, and nothing is to be made")
    print("\n".join(rehearsal(table, tables, range_, alone)), flush=True)
    if dry_run:
        return
    engine = database.connect(settings().control_url)
    require_wanted(engine, table.name, range_, who)
    with window.worker(engine, tables, f"backfill {table.name}", [table.name]) as own:
        work(own, replace(backfills.begin(engine, table.name, range_, who), alone=alone))


def work(own: Worker, asked: Backfill) -> None:
    """All that is left to do of it, each table after those it reads."""
    order = list(own.tables.tables)
    own.keeper.take([backfills.of_job(asked.root)])
    try:
        _give_up_deleted(own, asked)
        while left := sorted(backfills.undone(own.engine, asked.root), key=lambda one: order.index(one.table)):
            _do(own, replace(left[0], alone=asked.alone and left[0].number == asked.number))
    finally:
        with suppress(Unreachable):
            own.keeper.give_back([backfills.of_job(asked.root)])


def _give_up_deleted(own: Worker, asked: Backfill) -> None:
    """The other tables must not wait for one that nobody declares any more. Raises DeclarationError for a wrong one."""
    for one in backfills.undone(own.engine, asked.root):
        if one.table not in own.tables.tables and not catalog.has_file(one.table):
            giving_up.backfill(own.engine, own.tables, one)
        else:
            own.tables.table(one.table)


def _do(own: Worker, one: Backfill) -> None:
    table = own.tables.table(one.table)
    if one.range != Slice():
        _make_again(own, table, one)
        return
    with own.acquired_leases([shadow_table.lease(table)], patience_seconds=0):
        unseeded_generations.forget(table)
        _make_again(own, table, one)


def _make_again(own: Worker, table: Table, one: Backfill) -> None:
    made = None
    try:
        is_left = replaced_by(table.name, one) is None
        is_anew = is_left and one.range == Slice() and shadow_table.is_needed(own.spark, table)
        if is_anew:
            backfills.say(
                own.engine, one.number, backfills.COMPUTING, f"fills {shadow_table.of(table).name} from the source"
            )
            shadow_table.fill(own, table)
        elif is_left and not isinstance(table.write, Upsert):
            backfills.say(own.engine, one.number, backfills.COMPUTING, _reads(table))
            made = make(own.spark, table, one)
        count = f"{made.count:,} rows are made, " if made else ""
        backfills.say(own.engine, one.number, backfills.WAITING, f"{count}its window is asked for")
        _in_window(own, one, table, partial(_swap if is_anew else partial(_replace, made=made), own=own, one=one))
    except Exception as error:
        named = failure.of_exception(table.name, error)
        with suppress(SluiceError):
            _note(own, table, one, named)
        raise named from error
    finally:
        if made:
            made.rows.unpersist()


def _reads(table: Table) -> str:
    sources = [flow.source.table for flow in table.flows if isinstance(flow.source, Delta)]
    return f"makes rows of {', '.join(dict.fromkeys(sources))}"


def _note(own: Worker, table: Table, one: Backfill, error: SluiceError) -> None:
    """Readers may go on where they stand, unless the range was replaced: they would stop at that."""
    if replaced_by(table.name, one) is not None:
        backfills.note(own.engine, one, str(error))
        return
    if one.range == Slice():
        unseeded_generations.forget(table)
        if error.needs_person:
            # That may lie in what it has read so far.
            shadow_table.drop(own.spark, table)
    backfills.fail(own.engine, one, str(error))


def _in_window(own: Worker, one: Backfill, table: Table, work: Callable[[Window], None]) -> None:
    number = windows.plan(own.engine, table.name, one.who, f"backfill {one.number} {one.range}", is_worth_it=True)
    names = window.leases(table)
    with own.acquired_leases(names, table.maintain.longest_minutes * 60):
        own.window(table, number).run(own.halt, work)


def _replace(opened: Window, own: Worker, one: Backfill, made: Made | None) -> None:
    """What is done in the window."""
    table = opened.table
    _settle_others(own, table, one)
    if replaced_by(table.name, one) is None:
        create_table.create(own.spark, table)
        stamp = opened.begin(BACKFILL, table.name)

        def go() -> None:
            _drain(own, table, one)
            backfills.say(own.engine, one.number, backfills.REPLACING, "replaces its range")

        if isinstance(table.write, Upsert):
            replace_aggregate(own.spark, table, one, stamp, go)
        else:
            assert made
            replace_appends(own.spark, table, one, made, stamp, go)
    _finish(own, table, one)


def _swap(opened: Window, own: Worker, one: Backfill) -> None:
    """The same, where all of the table is made anew from its source: its own flows stop, too."""
    table = opened.table
    _settle_others(own, table, one)
    stamp = opened.begin(BACKFILL, table.name)
    flows = [flow.flow for flow in table.flows]
    backfills.stop_readers(own.engine, one, flows)
    with own.acquired_leases([flow for flow in flows if not own.keeper.holds(flow)], DRAIN_SECONDS):
        _drain(own, table, one)
        shadow_table.read_on(own, table)
        backfills.say(
            own.engine, one.number, backfills.REPLACING, f"takes over what {shadow_table.of(table).name} holds"
        )
        shadow_swap.put_in_place(own, table, one, stamp)
        _finish(own, table, one)


def _settle_others(own: Worker, table: Table, one: Backfill) -> None:
    for dead in backfills.interrupted(own.engine, table.name):
        if dead.number != one.number:
            _settle(own, table, dead)


def _settle(own: Worker, table: Table, dead: Backfill) -> None:
    """Another job has died here and left readers stopped: let them go on, before or behind what it has done."""
    if replaced_by(table.name, dead):
        _finish(own, table, dead)
    else:
        unseeded_generations.forget(table)
        backfills.fail(own.engine, dead, "its job died before it had replaced anything: run it again")


def _finish(own: Worker, table: Table, one: Backfill) -> None:
    commit = replaced_by(table.name, one)
    assert commit, "its range is replaced"
    said = commit.metadata[BACKFILL]
    shadow_swap.settle(own.spark, table, commit)
    rows = (said["rows_before"], commit.rows or 0)
    below = {flow.name: own.tables.tables[flow.name] for flow in readers(own.tables, table.name)}
    alone = said.get("alone", False)
    followers = [Follower(name, that_follows(reader, table, one.range, alone)) for name, reader in below.items()]
    if any(place.exists() for place in shadow_table.places(table)):
        shadow_table.drop(own.spark, table)
    backfills.finish(own.engine, one, commit.version, rows, followers)
    print(f"sluice: {table.name} {one.range}: {rows[0]:,} rows before, {rows[1]:,} after", flush=True)


def _drain(own: Worker, table: Table, one: Backfill) -> None:
    """Let the readers read all that is there, and stop them: no more comes while this window is open."""
    flows = readers(own.tables, table.name)
    if not flows:
        return
    backfills.say(own.engine, one.number, backfills.DRAINING, ", ".join(flow.flow for flow in flows))
    _let_catch_up(own, table, flows)
    backfills.stop_readers(own.engine, one, [flow.flow for flow in flows])
    # One whose file declares what it cannot go on from waits for a full refresh of its own, from the beginning.
    for flow in [flow for flow in flows if shadow_table.can_go_on(own.spark, flow)]:
        with own.acquired_leases([flow.flow], DRAIN_SECONDS):
            # Mostly it has, and what it is behind costs it no start.
            if _unread_files(flow, table) != 0:
                own.host.run_once([flow])
        if _unread_files(flow, table):
            raise FlowFailed(
                f"{flow.flow}: it has not read {table.name} to its end, and would stop at what a backfill replaces: "
                f"nothing was replaced; see why it does not read on, and run the backfill again"
            )


def _let_catch_up(own: Worker, table: Table, flows: list[Table]) -> None:
    """Those that run soon read what is left, which is done sooner than stopping them first and starting them again."""
    with database.reading(own.engine) as connection:
        alive = lease.alive(connection)
    soon = [flow for flow in flows if flow.flow in alive and flow.interval_seconds <= CATCH_UP_SECONDS]
    deadline = time.monotonic() + CATCH_UP_SECONDS
    while any(_unread_files(flow, table) for flow in soon) and time.monotonic() < deadline:
        threading.Event().wait(LOOK_SECONDS)


def _unread_files(flow: Table, table: Table) -> int | None:
    """None where it has not read any."""
    stands = position.of(flow.flow)
    unread = Feed(Log(settings().table_path(table.name)), changes=False)
    return unread.behind(stands.offset).files if stands and stands.offset else None
