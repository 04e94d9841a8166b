"""Rows that an earlier definition of their table wrote, until they are recomputed or a person decides to keep them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, Row, delete, insert, select

from include.control.store import database
from include.control.store.job_schema import outdated
from include.project.ranges import Slice, from_stored_texts
from include.spec import table_of


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


def list_all(engine: Engine) -> list[Outdated]:
    """The rows outdated by each flow's newest change, which includes earlier ones. Oldest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(outdated).order_by(outdated.c.number)).all()
    marks = [
        Outdated(
            *(row.flow, row.generation, row.batch, from_stored_texts(row.begins, row.ends), row.since),
            without_time=bool(row.without_time),
        )
        for row in rows
    ]
    newest: dict[str, tuple[int, int]] = {}
    for mark in marks:
        newest[mark.flow] = max(newest.get(mark.flow, (0, 0)), (mark.generation, mark.batch))
    return [mark for mark in marks if newest[mark.flow] == (mark.generation, mark.batch)]


def mark(
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
    begins, ends = range_.texts
    values = {
        "flow": flow,
        "target": table_of(flow),
        "generation": generation,
        "batch": batch,
        "definition": definition,
    }
    values |= {"begins": begins, "ends": ends, "without_time": without_time}
    connection.execute(insert(outdated).values(**values, since=database.now(connection)))


def unmark_undone(connection: Connection, flow: str, last_commit: tuple[int, int] | None) -> None:
    """Delete the marks of definition changes whose batches no longer exist. last_commit: generation and batch of the
    flow's newest commit. Marks of earlier changes count again.
    """
    is_undone = outdated.c.flow == flow
    if last_commit is not None:
        generation, batch = last_commit
        is_later = (outdated.c.generation == generation) & (outdated.c.batch > batch)
        is_undone &= (outdated.c.generation > generation) | is_later
    connection.execute(delete(outdated).where(is_undone))


def keep_rows(connection: Connection, flow: str) -> bool:
    """Delete the marks of a flow whose older rows are to stay as they are. Returns whether there were any."""
    return connection.execute(delete(outdated).where(outdated.c.flow == flow)).rowcount > 0


def unmark_range(
    connection: Connection, table: str, recomputed: Slice, definitions: Mapping[str, str], asked_at: float
) -> None:
    """Remove a recomputed range from the table's marks; the rest stays outdated. Rows without a time lie in no range.

    definitions: by flow, what made the rows of the range. A mark stays whose definition is a later one. Where a
    definition is unknown, because an older build stored mark or range, a mark stays that was made after `asked_at`:
    when the backfill was requested, in seconds since 1970.
    """
    rows = connection.execute(select(outdated).where(outdated.c.target == table)).all()
    for flow in {row.flow for row in rows}:
        marks = [row for row in rows if row.flow == flow]
        ended = [_place(row) for row in marks if _is_of(row, definitions.get(flow), asked_at)]
        for row in marks:
            # Marks of earlier changes would count again without the newest.
            if ended and _place(row) <= max(ended):
                _cut(connection, row, recomputed)


def _place(row: Row[Any]) -> tuple[int, int]:
    return row.generation, row.batch


def _is_of(row: Row[Any], definition: str | None, asked_at: float) -> bool:
    if row.definition is None or definition is None:
        return bool(row.since <= asked_at)
    return bool(row.definition == definition)


def _cut(connection: Connection, row: Row[Any], recomputed: Slice) -> None:
    """Remove a range from one mark."""
    is_row, (begins, ends) = outdated.c.number == row.number, recomputed.texts
    if begins is None or ends is None:
        connection.execute(delete(outdated).where(is_row))
        return
    if row.begins is None or row.begins >= ends or row.ends <= begins:
        return
    rest = [(row.begins, begins)] if row.begins < begins else []
    rest += [(ends, row.ends)] if row.ends > ends else []
    connection.execute(delete(outdated).where(is_row))
    for first, last in rest:
        values = {name: value for name, value in row._mapping.items() if name != "number"}
        connection.execute(insert(outdated).values({**values, "begins": first, "ends": last}))
