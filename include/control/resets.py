"""Checkpoints that are to begin a new generation, and what that cost."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sqlalchemy import Engine, select

from include.control import commands
from include.control.store import database
from include.control.store.schema import losses, releases, resets


@dataclass(frozen=True)
class Reset:
    """accepts_loss: skip what the topic no longer holds. who and reason: of whoever asked for it."""

    flow: str
    accepts_loss: bool
    who: str
    reason: str


class LostRange(Protocol):
    """Offsets `begin` to before `end` of a partition; end is None where nobody knows."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int | None: ...


def asked(engine: Engine, flow: str) -> Reset | None:
    """What is to happen at the flow's next start. Raises Unreachable."""
    with database.reading(engine) as connection:
        row = connection.execute(select(resets).where(resets.c.flow == flow)).one_or_none()
        return Reset(row.flow, row.accepts_loss, row.who, row.reason) if row else None


def done(engine: Engine, reset: Reset, generation: int, lost: Iterable[LostRange]) -> None:
    """It has happened: write down what was lost, for ever. Raises Unreachable."""
    with database.transaction(engine) as connection:
        ranges = [
            {"partition": one.partition, "first": one.begin, "after": one.end, "topic": one.topic, "flow": reset.flow}
            for one in lost
        ]
        common = {
            "generation": generation,
            "accepted_at": database.now(connection),
            "who": reset.who,
            "reason": reset.reason,
        }
        if ranges:
            connection.execute(losses.insert(), [one | common for one in ranges])
        result = f"generation {generation} begins" + (f", lost: {len(ranges)} ranges" if ranges else "")
        commands.record(connection, reset.who, "new generation", reset.flow, reset.reason, result)
        # Another one may have been asked for meanwhile.
        same = (resets.c.flow == reset.flow) & (resets.c.accepts_loss == reset.accepts_loss)
        connection.execute(resets.delete().where(same))
        connection.execute(releases.delete().where(releases.c.flow == reset.flow))
