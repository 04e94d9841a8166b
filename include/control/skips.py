"""Batches that a flow is to leave out, by approval."""

from dataclasses import dataclass

from sqlalchemy import Connection, Engine, select

from include.control.store import database
from include.control.store.schema import skips


@dataclass(frozen=True)
class BatchToSkip:
    """A batch that is planned and not written. reads: what it reads of its source, in words."""

    generation: int
    batch: int
    reads: str

    @property
    def lines(self) -> list[str]:
        """What must not change between request and approval."""
        return [f"batch {self.batch} of generation {self.generation}", self.reads]


@dataclass(frozen=True)
class Skip:
    """A batch that a flow leaves out. who: asked for it and approved it."""

    batch: int
    who: str
    reason: str


def approve(connection: Connection, flow: str, planned: BatchToSkip, who: str, reason: str) -> bool:
    """Store that the flow leaves out this batch. Returns whether that is new."""
    values = {"flow": flow, "generation": planned.generation, "batch": planned.batch, "reads": planned.reads}
    statement = database.insert(connection, skips).values(
        **values, approved_at=database.now(connection), who=who, reason=reason
    )
    statement = statement.on_conflict_do_nothing(index_elements=["flow", "generation", "batch"])
    return connection.execute(statement.returning(skips.c.batch)).one_or_none() is not None


def of_batch(engine: Engine, flow: str, generation: int, batch: int) -> Skip | None:
    """Whether the flow is to leave out this batch. Raises Unreachable."""
    is_same = (skips.c.flow == flow) & (skips.c.generation == generation) & (skips.c.batch == batch)
    with database.reading(engine) as connection:
        row = connection.execute(select(skips.c.who, skips.c.reason).where(is_same)).one_or_none()
    return Skip(batch, row.who, row.reason) if row else None
