"""Requested resets of checkpoints, and the records that each has lost."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Protocol

from sqlalchemy import Connection, Engine, select

from include.control.store import audit, database
from include.control.store.schema import losses, releases, resets


@dataclass(frozen=True)
class Reset:
    """accepts_loss: skip records that the topic no longer holds. who, reason and approver: of the command."""

    flow: str
    accepts_loss: bool
    who: str
    reason: str
    approver: str | None = None


class LostRange(Protocol):
    """The lost offsets of one partition, from `begin` to before `end`; end is None if it is unknown."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int | None: ...


def pending(engine: Engine, flow: str) -> Reset | None:
    """The reset that is due at the flow's next start. Raises Unreachable."""
    with database.reading(engine) as connection:
        row = connection.execute(select(resets).where(resets.c.flow == flow)).one_or_none()
        return Reset(row.flow, row.accepts_loss, row.who, row.reason, row.approver) if row else None


def request(connection: Connection, reset: Reset) -> None:
    """Store a reset for the flow's next start, unless one is due already."""
    statement = database.insert(connection, resets).values(asdict(reset))
    connection.execute(statement.on_conflict_do_nothing())


def complete(engine: Engine, reset: Reset, generation: int, lost: Iterable[LostRange]) -> None:
    """Delete the executed reset, and store the lost ranges permanently. Raises Unreachable."""
    with database.transaction(engine) as connection:
        ranges = [
            {
                "partition": range_.partition,
                "first": range_.begin,
                "after": range_.end,
                "topic": range_.topic,
                "flow": reset.flow,
            }
            for range_ in lost
        ]
        common = {
            "generation": generation,
            "accepted_at": database.now(connection),
            "who": f"{reset.who}, approved by {reset.approver}" if reset.approver else reset.who,
            "reason": reset.reason,
        }
        if ranges:
            connection.execute(losses.insert(), [range_ | common for range_ in ranges])
        result = f"generation {generation} begins" + (f", lost: {len(ranges)} ranges" if ranges else "")
        words = "new generation", reset.flow, reset.reason, result
        audit.record(connection, reset.who, *words, approver=reset.approver)
        # Another reset may have been requested meanwhile.
        is_same = (resets.c.flow == reset.flow) & (resets.c.accepts_loss == reset.accepts_loss)
        connection.execute(resets.delete().where(is_same))
        connection.execute(releases.delete().where(releases.c.flow == reset.flow))
