"""Gives up jobs that nobody will complete. Their flows resume, and tables with wrong or missing rows become STALE."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine, select, update

from include.control import commands
from include.control.jobs import backfills as jobs
from include.control.jobs import job_id, paused_flows, rewinds, stale_tables
from include.control.jobs.backfills import Backfill
from include.control.jobs.rewinds import Rewind
from include.control.store import database
from include.control.store.job_schema import backfills
from include.control.store.schema import resets
from include.errors import UsageError
from include.project.ranges import Slice

# The requester outside Airflow. A repeated command is a new request there, not the retry of a run.
BY_HAND = "by hand"


@dataclass(frozen=True)
class PartialRewind:
    """The state in which a rewind is given up. put_back: the tables it has already restored. anew: the flows that still
    have to begin a new generation after that. stale: by table, why it holds undone rows or lacks rows.
    """

    put_back: Collection[str] = ()
    anew: Collection[str] = ()
    stale: Mapping[str, str] = field(default_factory=dict)


def rewind(connection: Connection, job: Rewind, message: str, remains: PartialRewind) -> None:
    """Give up a rewind. One transaction stores all of it, because no flow may start before its new generation is known:
    on a restored table it would resume where it stopped and leave out the undone rows.
    """
    rewinds.close(connection, job, rewinds.GIVEN_UP, message)
    rewinds.undo(connection, job, remains.put_back)
    for table, reason in remains.stale.items():
        stale_tables.mark(connection, table, Slice(), reason)
    for flow in remains.anew:
        values = {"flow": flow, "accepts_loss": False, "who": job.who, "reason": f"behind rewind {job.number}"}
        connection.execute(database.insert(connection, resets).values(values).on_conflict_do_nothing())


def backfill(connection: Connection, job: Backfill, message: str) -> None:
    """Give up a backfill that has replaced nothing. Its table becomes STALE if it was to follow another table."""
    paused_flows.resume(connection, job_id.backfill(job.number), job.who)
    now = database.now(connection)
    values = {"phase": jobs.GIVEN_UP, "said": message, "failure": None, "phase_at": now, "ended_at": now}
    connection.execute(update(backfills).where(backfills.c.number == job.number).values(values))
    stale_tables.mark_given_up(connection, job.table, job.root)
    commands.audit(connection, job.who, "backfill", job.table, str(job.range), f"{jobs.GIVEN_UP}: {message}")


def require_not_given_up(engine: Engine, table: str, range_: Slice, requester: str) -> None:
    """Raises UsageError if the same run's backfill of this range was given up: a retry must not begin it again."""
    begins, ends = range_.texts
    is_given_up = (backfills.c.target == table) & (backfills.c.who == requester) & (backfills.c.phase == jobs.GIVEN_UP)
    is_given_up &= backfills.c.begins.is_not_distinct_from(begins) & backfills.c.ends.is_not_distinct_from(ends)
    with database.reading(engine) as connection:
        number = connection.execute(select(backfills.c.number).where(is_given_up)).scalars().first()
    if number is not None and requester != BY_HAND:
        raise UsageError(f"{table} {range_}: backfill {number} of run '{requester}' was given up: trigger another run")
