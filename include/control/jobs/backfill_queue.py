"""Backfills that a running driver is asked to do: a process of their own takes longer to start than most of them take.

What is asked for stays so until a driver has said how it ended. So the next one takes up what a dead one has left.
"""

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, delete, select, update

from include.control import lease
from include.control.jobs import backfills, giving_up
from include.control.jobs.backfills import Backfill
from include.control.store import database
from include.control.store.job_schema import backfills as rows
from include.control.store.job_schema import requests
from include.errors import FlowFailed
from include.validation.slices import Slice

# What has ended that many drivers may be the reason for it, and their streams stand still each time.
TRIES = 2


@dataclass(frozen=True)
class BackfillStatus:
    """How far a backfill has come that a driver was asked for. said: in words. is_done: with all tables below it.

    is_in_hand: somebody does it, or the driver does another one first. failure: why it came to nothing.
    """

    said: str
    is_done: bool = False
    is_in_hand: bool = False
    failure: str | None = None


def ask(engine: Engine, table: str, range_: Slice, who: str, driver: str) -> int | None:
    """Enter a backfill that this driver is to do, or take up the same where nobody is at it; returns its number.

    None, and nothing is entered, where no such driver lives. Raises UsageError where it was given up, and Unreachable.
    """
    with database.reading(engine) as connection:
        if lease.of_driver(driver) not in lease.alive(connection):
            return None
        waiting = _waiting(connection, table, range_)
    giving_up.require_wanted(engine, table, range_, who)
    number = waiting or backfills.begin(engine, table, range_, who).number
    with database.transaction(engine) as connection:
        values = {"driver": driver, "asked_at": database.now(connection), "tries": 0}
        statement = database.insert(connection, requests).values(root=number, **values)
        connection.execute(statement.on_conflict_do_nothing())
        fresh = (rows.c.number == number) & (rows.c.phase == backfills.PLANNED)
        connection.execute(update(rows).where(fresh).values(said=f"driver '{driver}' is asked to do it"))
    return number


def _waiting(connection: Connection, table: str, range_: Slice) -> int | None:
    """The number of the same one, if a driver is asked for it that has not begun."""
    begins, ends = range_.texts
    same = (
        (rows.c.target == table) & rows.c.begins.is_not_distinct_from(begins) & rows.c.ends.is_not_distinct_from(ends)
    )
    asked = select(rows.c.number).join(requests, requests.c.root == rows.c.number)
    return connection.execute(asked.where(same, requests.c.tries == 0)).scalars().first()


def begin(engine: Engine, root: int) -> Backfill | None:
    """For the driver that is asked: it begins now. None where it is asked no more.

    Raises FlowFailed where that has ended too many drivers before, and Unreachable.
    """
    with database.transaction(engine) as connection:
        same = requests.c.root == root
        tries = connection.execute(select(requests.c.tries).where(same).with_for_update()).scalar_one_or_none()
        if tries is None:
            return None
        if tries >= TRIES:
            raise FlowFailed(
                f"backfill {root}: {tries} tries inside a driver came to no end, which it may be the reason for: do it "
                f"in a process of its own, spark-submit jobs/backfill.py"
            )
        connection.execute(update(requests).where(same).values(tries=tries + 1))
    return backfills.find(engine, root)


def end(engine: Engine, root: int) -> None:
    """No driver is asked for it any more: it is done, or somebody else is to do it."""
    with database.transaction(engine) as connection:
        connection.execute(delete(requests).where(requests.c.root == root))


def leave(engine: Engine, root: int) -> None:
    """Its driver had to end before it was done: the next one is to do it."""
    with database.transaction(engine) as connection:
        connection.execute(update(requests).where(requests.c.root == root).values(tries=0))


def fail(engine: Engine, root: int, failure: str) -> None:
    """It failed, and no driver is asked for it any more. What somebody else is at keeps its own words."""
    with database.transaction(engine) as connection:
        connection.execute(delete(requests).where(requests.c.root == root))
        if backfills.of_job(root) not in lease.alive(connection):
            left = (rows.c.root == root) & rows.c.ended_at.is_(None)
            connection.execute(update(rows).where(left).values(failure=failure))


def standing(engine: Engine, root: int) -> BackfillStatus:
    """For whoever waits for it. Raises Unreachable."""
    # In this order: a driver first ends its work, then says so.
    with database.reading(engine) as connection:
        asked = connection.execute(select(requests).where(requests.c.root == root)).one_or_none()
        alive = lease.alive(connection)
        busy = {row.driver for row in connection.execute(select(requests)) if backfills.of_job(row.root) in alive}
    left = backfills.undone(engine, root)
    if not left:
        is_given_up = backfills.find(engine, root).phase == backfills.GIVEN_UP
        said = "it was given up" if is_given_up else "it is done"
        return BackfillStatus(said, is_done=not is_given_up, failure=said if is_given_up else None)
    now = max(left, key=lambda one: one.phase_at)
    if backfills.of_job(root) in alive:
        return BackfillStatus(f"{now.table}: {now.phase}: {now.said}", is_in_hand=True)
    if asked is None:
        return BackfillStatus("no driver is asked for it", failure=now.failure)
    if asked.driver in busy:
        return BackfillStatus(f"driver '{asked.driver}' does another one first", is_in_hand=True)
    return BackfillStatus(f"driver '{asked.driver}' is asked to do it")
