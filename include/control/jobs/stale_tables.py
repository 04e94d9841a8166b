"""Tables that are STALE: they were computed from rows that have been replaced, and are not recomputed yet."""

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, delete, insert, select, update

from include.control.jobs import job_id
from include.control.store import database
from include.control.store.job_schema import stale
from include.project.ranges import Slice, from_stored_texts


@dataclass(frozen=True)
class Stale:
    """A STALE range of the table, or of the table above it if it cannot be mapped. since: in seconds since 1970.

    follows: the backfill that recomputes it, unless it was given up; None: a person has to.
    """

    table: str
    range: Slice
    cause: str
    since: float
    follows: int | None = None
    is_given_up: bool = False

    @property
    def why(self) -> str:
        """The cause and the remedy, in words."""
        if self.follows is None:
            return self.cause
        backfill = job_id.backfill(self.follows)
        if self.is_given_up:
            return f"{self.cause}: {backfill} was given up: backfill {self.table}"
        return f"{self.cause}: {backfill} recomputes it"


def list_all(engine: Engine) -> list[Stale]:
    """All STALE ranges, oldest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(stale).order_by(stale.c.number)).all()
        return [
            Stale(
                *(row.target, from_stored_texts(row.begins, row.ends), row.why, row.since),
                *(row.follows, bool(row.given_up)),
            )
            for row in rows
        ]


def mark(connection: Connection, table: str, range_: Slice, cause: str, follows: int | None = None) -> None:
    """Mark a range as STALE. cause: in words, with the remedy unless a backfill follows. follows: its root."""
    begins, ends = range_.texts
    values = {"target": table, "begins": begins, "ends": ends, "why": cause, "follows": follows}
    connection.execute(insert(stale).values(**values, since=database.now(connection)))


def unmark_range(connection: Connection, table: str, recomputed: Slice) -> None:
    """Remove the marks inside a range that was recomputed."""
    begins, ends = recomputed.texts
    is_recomputed = stale.c.target == table
    if begins is not None:
        is_recomputed &= (stale.c.begins >= begins) & (stale.c.ends <= ends)
    connection.execute(delete(stale).where(is_recomputed))


def unmark_since(connection: Connection, table: str, since: float) -> None:
    """Remove the marks since a time, in seconds since 1970, because their cause was undone."""
    connection.execute(delete(stale).where((stale.c.target == table) & (stale.c.since > since)))


def mark_given_up(connection: Connection, table: str, root: int) -> None:
    """Keep the table STALE, and record that this backfill was given up."""
    follows_root = (stale.c.target == table) & (stale.c.follows == root)
    connection.execute(update(stale).where(follows_root).values(given_up=True))
