"""Ends jobs that nobody will end: their flows go on, and what is not as it should be is STALE."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine, select, update

from include.control import commands
from include.control.jobs import backfills as jobs
from include.control.jobs import paused_flows, rewinds, stale_tables
from include.control.jobs.backfills import Backfill
from include.control.jobs.rewinds import Rewind
from include.control.store import database
from include.control.store.job_schema import backfills
from include.control.store.schema import resets
from include.errors import UsageError
from include.validation.slices import Slice

# Who asks by no run of Airflow, whose next command is another wish.
BY_HAND = "by hand"


@dataclass(frozen=True)
class Halfway:
    """A rewind that has put back some tables. put_back: those. anew: the flows that have yet to begin a generation
    behind that. stale: tables that hold what is undone above them, or lack what they need, each with why.
    """

    put_back: Collection[str] = ()
    anew: Collection[str] = ()
    stale: Mapping[str, str] = field(default_factory=dict)


def rewind(connection: Connection, one: Rewind, said: str, left: Halfway) -> None:
    """In one transaction, so that no flow starts before it is known where: one whose table was put back would leave out
    what is undone if it went on where it stood.
    """
    rewinds.end(connection, one, rewinds.GIVEN_UP, said)
    rewinds.undo(connection, one, left.put_back)
    for table, why in left.stale.items():
        stale_tables.mark(connection, table, Slice(), why)
    for flow in left.anew:
        values = {"flow": flow, "accepts_loss": False, "who": one.who, "reason": f"behind rewind {one.number}"}
        connection.execute(database.insert(connection, resets).values(values).on_conflict_do_nothing())


def backfill(connection: Connection, one: Backfill, said: str) -> None:
    """One that has replaced nothing: its table stays as it is, and STALE where it was to follow another."""
    paused_flows.resume(connection, f"backfill {one.number}", one.who)
    now = database.now(connection)
    values = {"phase": jobs.GIVEN_UP, "said": said, "failure": None, "phase_at": now, "ended_at": now}
    connection.execute(update(backfills).where(backfills.c.number == one.number).values(values))
    stale_tables.leave(connection, one.table, one.root)
    commands.record(connection, one.who, "backfill", one.table, str(one.range), f"{jobs.GIVEN_UP}: {said}")


def require_wanted(engine: Engine, table: str, range_: Slice, who: str) -> None:
    """Raises UsageError where the same was given up that this run has asked for: its retry is not to begin it again."""
    begins, ends = range_.texts
    same = (backfills.c.target == table) & (backfills.c.who == who) & (backfills.c.phase == jobs.GIVEN_UP)
    same &= backfills.c.begins.is_not_distinct_from(begins) & backfills.c.ends.is_not_distinct_from(ends)
    with database.reading(engine) as connection:
        number = connection.execute(select(backfills.c.number).where(same)).scalars().first()
    if number is not None and who != BY_HAND:
        raise UsageError(f"{table} {range_}: backfill {number} of run '{who}' was given up: trigger another run")
