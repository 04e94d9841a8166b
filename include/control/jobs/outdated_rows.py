"""Rows that an earlier definition of their table made, until they are made again or a person keeps them as they are."""

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, delete, insert, select, update

from include.control.store import database
from include.control.store.job_schema import outdated
from include.spec import table_of
from include.validation.slices import Slice, stored


@dataclass(frozen=True)
class Outdated:
    """batch: of the generation of the flow's checkpoint, the first that today's definition made. range: of the older
    rows, by the table's time column; as a whole where nobody can tell. since: in seconds since 1970.
    """

    flow: str
    generation: int
    batch: int
    range: Slice
    since: float

    @property
    def table(self) -> str:
        return table_of(self.flow)


def every(engine: Engine) -> list[Outdated]:
    """Of each flow's newest change, which counts the rows of all earlier ones. Oldest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(select(outdated).order_by(outdated.c.number)).all()
    marks = [Outdated(row.flow, row.generation, row.batch, stored(row.begins, row.ends), row.since) for row in rows]
    newest: dict[str, tuple[int, int]] = {}
    for mark in marks:
        newest[mark.flow] = max(newest.get(mark.flow, (0, 0)), (mark.generation, mark.batch))
    return [mark for mark in marks if newest[mark.flow] == (mark.generation, mark.batch)]


def mark(connection: Connection, flow: str, generation: int, batch: int, rows: Slice) -> None:
    """All rows that the flow has written are of earlier definitions."""
    begins, ends = rows.texts
    values = {"flow": flow, "target": table_of(flow), "generation": generation, "batch": batch}
    connection.execute(insert(outdated).values(**values, begins=begins, ends=ends, since=database.now(connection)))


def take_back(connection: Connection, flow: str, last_commit: tuple[int, int] | None) -> None:
    """Forget the changes by which no batch that stands was made. last_commit: generation and batch of the flow's newest
    one. What an earlier change has left outdated is so again.
    """
    unmade = outdated.c.flow == flow
    if last_commit is not None:
        generation, batch = last_commit
        is_later = (outdated.c.generation == generation) & (outdated.c.batch > batch)
        unmade &= (outdated.c.generation > generation) | is_later
    connection.execute(delete(outdated).where(unmade))


def forget(connection: Connection, flow: str) -> bool:
    """Its older rows stay as they are; whether there were any."""
    return connection.execute(delete(outdated).where(outdated.c.flow == flow)).rowcount > 0


def end(connection: Connection, table: str, made: Slice, asked_at: float) -> None:
    """The rows of this range were made again: what is left is outdated still.

    asked_at: when that was asked for, in seconds since 1970. What began before a change may have run with the file as
    it was, and ends nothing.
    """
    mine = (outdated.c.target == table) & (outdated.c.since <= asked_at)
    begins, ends = made.texts
    if begins is None or ends is None:
        connection.execute(delete(outdated).where(mine))
        return
    connection.execute(delete(outdated).where(mine, outdated.c.begins >= begins, outdated.c.ends <= ends))
    overlaps = mine & (outdated.c.begins < ends) & (outdated.c.ends > begins)
    for row in connection.execute(select(outdated).where(overlaps)).all():
        same = outdated.c.number == row.number
        if row.begins < begins and row.ends > ends:
            rest = {name: value for name, value in row._mapping.items() if name not in ("number", "begins")}
            connection.execute(insert(outdated).values(**rest, begins=ends))
        kept = {"ends": begins} if row.begins < begins else {"begins": ends}
        connection.execute(update(outdated).where(same).values(kept))
