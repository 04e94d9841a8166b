"""Rows that are not current, until they are recomputed: each mark names a range of a table's rows, and the cause.

Rows of STALE marks were computed from rows that have been replaced. Rows of outdated marks are of an earlier definition
of their table, which a person may decide to keep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, insert, select, update

from include.control.store import database, job_id
from include.control.store.job_schema import stale
from include.project.ranges import Slice, from_stored_texts
from include.spec import table_of


class Cause(StrEnum):
    """SOURCE: they were computed from rows that have been replaced. DEFINITION: an earlier definition made them."""

    SOURCE = "source"
    DEFINITION = "definition"


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


@dataclass(frozen=True)
class Outdated:
    """The outdated rows of one flow. batch: the first batch of this generation by the current definition. range: of the
    older rows by the table's time column; the whole table if it is unknown. since: in seconds since 1970.
    without_time: only rows that have no time.
    """

    flow: str
    generation: int
    batch: int
    range: Slice
    since: float
    without_time: bool = False

    @property
    def table(self) -> str:
        return table_of(self.flow)


def stale_ranges(engine: Engine) -> list[Stale]:
    """All STALE ranges, oldest first. Raises Unreachable."""
    return [
        Stale(row.target, _range(row), row.why, row.since, row.follows, bool(row.given_up))
        for row in _marks(engine, Cause.SOURCE)
    ]


def outdated_ranges(engine: Engine) -> list[Outdated]:
    """The rows outdated by each flow's newest change, which includes earlier ones. Oldest first. Raises Unreachable."""
    rows, newest = _marks(engine, Cause.DEFINITION), dict[str, tuple[int, int]]()
    for row in rows:
        newest[row.flow] = max(newest.get(row.flow, (0, 0)), _place(row))
    return [
        Outdated(row.flow, row.generation, row.batch, _range(row), row.since, bool(row.without_time))
        for row in rows
        if newest[row.flow] == _place(row)
    ]


def mark_stale(connection: Connection, table: str, range_: Slice, why: str, follows: int | None = None) -> None:
    """Mark a range as STALE. why: in words, with the remedy unless a backfill follows. follows: its root."""
    _insert(connection, Cause.SOURCE, table, range_, why=why, follows=follows)


def mark_outdated(
    connection: Connection,
    flow: str,
    generation: int,
    batch: int,
    range_: Slice,
    definition: str | None = None,
    without_time: bool = False,
) -> None:
    """Record that this batch is the first of a new definition, and the range of the rows that the flow wrote before.

    definition: the SHA-256 of what determines rows by it. without_time: only rows that have no time; range_ is whole.
    """
    place = {"flow": flow, "generation": generation, "batch": batch, "definition": definition}
    _insert(connection, Cause.DEFINITION, table_of(flow), range_, why="", without_time=without_time, **place)


def unmark_since(connection: Connection, table: str, since: float) -> None:
    """Remove the STALE marks since a time, in seconds since 1970, because their cause was undone."""
    is_later = (stale.c.cause == Cause.SOURCE) & (stale.c.target == table) & (stale.c.since > since)
    connection.execute(delete(stale).where(is_later))


def mark_given_up(connection: Connection, table: str, root: int) -> None:
    """Keep the table STALE, and record that this backfill was given up."""
    follows_root = (stale.c.target == table) & (stale.c.follows == root)
    connection.execute(update(stale).where(follows_root).values(given_up=True))


def unmark_undone(connection: Connection, flow: str, last_commit: tuple[int, int] | None) -> None:
    """Delete the marks of definition changes whose batches no longer exist. last_commit: generation and batch of the
    flow's newest commit. Marks of earlier changes count again.
    """
    is_undone = stale.c.flow == flow
    if last_commit is not None:
        generation, batch = last_commit
        is_later = (stale.c.generation == generation) & (stale.c.batch > batch)
        is_undone &= (stale.c.generation > generation) | is_later
    connection.execute(delete(stale).where(is_undone))


def keep_rows(connection: Connection, flow: str) -> bool:
    """Delete the marks of a flow whose older rows are to stay as they are. Returns whether there were any."""
    return connection.execute(delete(stale).where(stale.c.flow == flow)).rowcount > 0


def unmark_range(
    connection: Connection, table: str, recomputed: Slice, definitions: Mapping[str, str], asked_at: float
) -> None:
    """Remove the STALE marks inside a recomputed range, and the range from the marks of its earlier definitions.

    Parameters: as for `unmark_outdated`.
    """
    begins, ends = recomputed.texts
    is_recomputed = (stale.c.cause == Cause.SOURCE) & (stale.c.target == table)
    if begins is not None:
        is_recomputed &= (stale.c.begins >= begins) & (stale.c.ends <= ends)
    connection.execute(delete(stale).where(is_recomputed))
    unmark_outdated(connection, table, recomputed, definitions, asked_at)


def unmark_outdated(
    connection: Connection, table: str, recomputed: Slice, definitions: Mapping[str, str], asked_at: float
) -> None:
    """Remove a recomputed range from the table's marks of definitions; the rest stays outdated. Rows without a time lie
    in no range.

    definitions: by flow, what made the rows of the range. A mark stays whose definition is a later one. Where a
    definition is unknown, because an older build stored mark or range, a mark stays that was made after `asked_at`:
    when the range was requested, in seconds since 1970.
    """
    is_outdated = (stale.c.cause == Cause.DEFINITION) & (stale.c.target == table)
    rows = connection.execute(select(stale).where(is_outdated)).all()
    for flow in {row.flow for row in rows}:
        marks = [row for row in rows if row.flow == flow]
        ended = [_place(row) for row in marks if _is_of(row, definitions.get(flow), asked_at)]
        for row in marks:
            # Marks of earlier changes would count again without the newest.
            if ended and _place(row) <= max(ended):
                _cut(connection, row, recomputed)


def _marks(engine: Engine, cause: Cause) -> Sequence[Row[Any]]:
    with database.reading(engine) as connection:
        return connection.execute(select(stale).where(stale.c.cause == cause).order_by(stale.c.number)).all()


def _insert(connection: Connection, cause: Cause, table: str, range_: Slice, **values: Any) -> None:
    begins, ends = range_.texts
    values |= {"target": table, "cause": cause, "begins": begins, "ends": ends, "since": database.now(connection)}
    connection.execute(insert(stale).values(values))


def _range(row: Row[Any]) -> Slice:
    return from_stored_texts(row.begins, row.ends)


def _place(row: Row[Any]) -> tuple[int, int]:
    return row.generation, row.batch


def _is_of(row: Row[Any], definition: str | None, asked_at: float) -> bool:
    if row.definition is None or definition is None:
        return bool(row.since <= asked_at)
    return bool(row.definition == definition)


def _cut(connection: Connection, row: Row[Any], recomputed: Slice) -> None:
    """Remove a range from one mark."""
    is_row, (begins, ends) = stale.c.number == row.number, recomputed.texts
    if begins is None or ends is None:
        connection.execute(delete(stale).where(is_row))
        return
    if row.begins is None or row.begins >= ends or row.ends <= begins:
        return
    rest = [(row.begins, begins)] if row.begins < begins else []
    rest += [(ends, row.ends)] if row.ends > ends else []
    connection.execute(delete(stale).where(is_row))
    for first, last in rest:
        values = {name: value for name, value in row._mapping.items() if name != "number"}
        connection.execute(insert(stale).values({**values, "begins": first, "ends": last}))
