"""Tables that were made of rows that are no more, until they are made again."""

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, delete, insert, select, update

from include.control.store import database
from include.control.store.job_schema import stale
from include.validation.slices import Slice, stored


@dataclass(frozen=True)
class Stale:
    """range: of the table, or of the one above it where nobody can tell. since: in seconds since 1970."""

    table: str
    range: Slice
    why: str
    since: float


def every(engine: Engine) -> list[Stale]:
    """Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(stale).order_by(stale.c.number)).all()
        return [Stale(row.target, stored(row.begins, row.ends), row.why, row.since) for row in rows]


def mark(connection: Connection, table: str, range_: Slice, why: str) -> None:
    """why: a sentence, and the way out."""
    begins, ends = range_.texts
    values = {"target": table, "begins": begins, "ends": ends, "why": why, "since": database.now(connection)}
    connection.execute(insert(stale).values(values))


def end(connection: Connection, table: str, made: Slice) -> None:
    """The table is right again in this range."""
    begins, ends = made.texts
    inside = stale.c.target == table
    if begins is not None:
        inside &= (stale.c.begins >= begins) & (stale.c.ends <= ends)
    connection.execute(delete(stale).where(inside))


def forget(connection: Connection, table: str, since: float) -> None:
    """What has made it stale since then, in seconds since 1970, was undone."""
    connection.execute(delete(stale).where((stale.c.target == table) & (stale.c.since > since)))


def awaits(root: int) -> str:
    """How the reason ends while a backfill is to make the table again."""
    return f"backfill {root} is to make it again"


def leave(connection: Connection, table: str, root: int) -> None:
    """It is stale as before, and that backfill will not make it again."""
    own = (stale.c.target == table) & stale.c.why.endswith(awaits(root))
    for row in connection.execute(select(stale).where(own)).all():
        why = f"{row.why.removesuffix(awaits(root))}backfill {root} was given up: backfill {table}"
        connection.execute(update(stale).where(stale.c.number == row.number).values(why=why))
