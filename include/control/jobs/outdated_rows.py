"""Rows that an earlier definition of their table wrote, until they are recomputed or a person decides to keep them."""

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, delete, insert, select, update

from include.control.store import database
from include.control.store.job_schema import outdated
from include.spec import table_of
from include.validation.slices import Slice, from_stored_texts


@dataclass(frozen=True)
class Outdated:
    """The outdated rows of one flow. batch: the first batch of this generation by the current definition. range: of the
    older rows by the table's time column; the whole table if it is unknown. since: in seconds since 1970.
    """

    flow: str
    generation: int
    batch: int
    range: Slice
    since: float

    @property
    def table(self) -> str:
        return table_of(self.flow)


def list_all(engine: Engine) -> list[Outdated]:
    """The rows outdated by each flow's newest change, which includes earlier ones. Oldest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(outdated).order_by(outdated.c.number)).all()
    marks = [
        Outdated(row.flow, row.generation, row.batch, from_stored_texts(row.begins, row.ends), row.since)
        for row in rows
    ]
    newest: dict[str, tuple[int, int]] = {}
    for mark in marks:
        newest[mark.flow] = max(newest.get(mark.flow, (0, 0)), (mark.generation, mark.batch))
    return [mark for mark in marks if newest[mark.flow] == (mark.generation, mark.batch)]


def mark(connection: Connection, flow: str, generation: int, batch: int, range_: Slice) -> None:
    """Record that this batch is the first of a new definition, and the range of the rows that the flow wrote before."""
    begins, ends = range_.texts
    values = {"flow": flow, "target": table_of(flow), "generation": generation, "batch": batch}
    connection.execute(insert(outdated).values(**values, begins=begins, ends=ends, since=database.now(connection)))


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


def unmark_range(connection: Connection, table: str, recomputed: Slice, asked_at: float) -> None:
    """Remove a recomputed range from the table's marks; the rest stays outdated.

    asked_at: when the backfill was requested, in seconds since 1970. A change after that keeps its marks, because the
    backfill may have run with the earlier table file.
    """
    is_candidate = (outdated.c.target == table) & (outdated.c.since <= asked_at)
    begins, ends = recomputed.texts
    if begins is None or ends is None:
        connection.execute(delete(outdated).where(is_candidate))
        return
    connection.execute(delete(outdated).where(is_candidate, outdated.c.begins >= begins, outdated.c.ends <= ends))
    overlaps = is_candidate & (outdated.c.begins < ends) & (outdated.c.ends > begins)
    for row in connection.execute(select(outdated).where(overlaps)).all():
        is_row = outdated.c.number == row.number
        if row.begins < begins and row.ends > ends:
            rest = {name: value for name, value in row._mapping.items() if name not in ("number", "begins")}
            connection.execute(insert(outdated).values(**rest, begins=ends))
        remaining = {"ends": begins} if row.begins < begins else {"begins": ends}
        connection.execute(update(outdated).where(is_row).values(remaining))
