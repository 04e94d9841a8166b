"""Tables that are STALE: they were computed from rows that have been replaced, and are not recomputed yet."""

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, delete, insert, select, update

from include.control.store import database
from include.control.store.job_schema import stale
from include.validation.slices import Slice, from_stored_texts


@dataclass(frozen=True)
class Stale:
    """A STALE range of the table, or of the table above it if it cannot be mapped. since: in seconds since 1970."""

    table: str
    range: Slice
    why: str
    since: float


def list_all(engine: Engine) -> list[Stale]:
    """All STALE ranges, oldest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(stale).order_by(stale.c.number)).all()
        return [Stale(row.target, from_stored_texts(row.begins, row.ends), row.why, row.since) for row in rows]


def mark(connection: Connection, table: str, range_: Slice, reason: str) -> None:
    """Mark a range as STALE. reason: a sentence that includes the remedy."""
    begins, ends = range_.texts
    values = {"target": table, "begins": begins, "ends": ends, "why": reason, "since": database.now(connection)}
    connection.execute(insert(stale).values(values))


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


def pending_suffix(root: int) -> str:
    """The end of the reason while a backfill is still to recompute the table."""
    return f"backfill {root} is to make it again"


def mark_given_up(connection: Connection, table: str, root: int) -> None:
    """Keep the table STALE, and state that this backfill was given up."""
    awaits_root = (stale.c.target == table) & stale.c.why.endswith(pending_suffix(root))
    for row in connection.execute(select(stale).where(awaits_root)).all():
        reason = f"{row.why.removesuffix(pending_suffix(root))}backfill {root} was given up: backfill {table}"
        connection.execute(update(stale).where(stale.c.number == row.number).values(why=reason))
