"""What a flow waits for before its first batch: that the flows above its lookups have read once what there was to read.
A view waits so before its first refresh.

An end of a source is recorded once, so that neither a restart nor new records move it.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, delete, select, update

from include.control.store import database
from include.control.store.schema import desired, first_loads, runs, ticks


@dataclass(frozen=True)
class Awaited:
    """A flow for which another one waits. end: of its source, in JSON; None until it is known. is_read: it is reached.

    The end of a table is known once the flows that write the table have reached theirs.
    """

    flow: str
    end: Any = None
    is_read: bool = False


def find(engine: Engine, flow: str, life: str) -> dict[str, Awaited]:
    """By flow, what `flow` waits for. life: names one life of its table and checkpoint. Raises Unreachable."""
    with database.reading(engine) as connection:
        rows = connection.execute(_of(flow, life)).all()
    return {row.awaits: _to_awaited(row) for row in rows}


def record(engine: Engine, flow: str, life: str, awaited: Collection[Awaited]) -> None:
    """Store what `flow` waits for in this life, and forget earlier lives. Raises Unreachable."""
    with database.transaction(engine) as connection:
        connection.execute(delete(first_loads).where(first_loads.c.flow == flow, first_loads.c.life != life))
        now, known = database.now(connection), {row.awaits: row for row in connection.execute(_of(flow, life))}
        for item in awaited:
            values: dict[str, Any] = {"source_end": None if item.end is None else json.dumps(item.end)}
            values["read_at"] = now if item.is_read else None
            if item.flow not in known:
                key = {"flow": flow, "awaits": item.flow, "life": life, "asked_at": now}
                connection.execute(first_loads.insert().values(**key, **values))
            elif known[item.flow].read_at is None:
                is_item = (first_loads.c.flow == flow) & (first_loads.c.awaits == item.flow)
                connection.execute(update(first_loads).where(is_item).values(values))


def forget(engine: Engine, flow: str) -> None:
    """Forget what the flow waits for, because it waits no more. Raises Unreachable."""
    with database.reading(engine) as connection:
        is_pending = (first_loads.c.flow == flow) & first_loads.c.read_at.is_(None)
        if connection.execute(select(first_loads.c.flow).where(is_pending)).first() is None:
            return
    with database.transaction(engine) as connection:
        connection.execute(delete(first_loads).where(first_loads.c.flow == flow))


def waiting(connection: Connection, flows: Collection[str], what: str = "batch") -> dict[str, str]:
    """By flow, a description of the first loads that it waits for. Flows that wait for none are absent.

    what: that waits: the `batch` of a flow, or the `refresh` of a view.
    """
    pending = first_loads.c.flow.in_(flows) & first_loads.c.read_at.is_(None)
    rows = connection.execute(select(first_loads).where(pending).order_by(first_loads.c.number)).all()
    states = _states(connection, {row.awaits for row in rows})
    return {
        flow: words([(row.awaits, states.get(row.awaits, "")) for row in rows if row.flow == flow], since, what)
        for flow, since in {row.flow: row.asked_at for row in reversed(rows)}.items()
    }


def words(awaited: Collection[tuple[str, str]], since: float, what: str = "batch") -> str:
    """Describes a wait for these flows, each with what keeps it from reading. since: in seconds since 1970."""
    names = ", ".join(f"{flow} ({state})" if state else flow for flow, state in awaited)
    return (
        f"its first {what} waits until {names} has read once what its source held at "
        f"{datetime.fromtimestamp(since, UTC):%Y-%m-%d %H:%M}Z; wait=False in its lookup, rule or source begins without"
    )


def _states(connection: Connection, flows: Collection[str]) -> dict[str, str]:
    """By flow, what keeps it from reading, where something does."""
    failed = connection.execute(select(runs).where(runs.c.flow.in_(flows), runs.c.failure.is_not(None)))
    states = {row.flow: f"failed: {row.error}" for row in failed}
    stopped = select(desired.c.flow).where(desired.c.flow.in_(flows), desired.c.state == "stopped")
    scheduled = set(connection.execute(select(ticks.c.flow).where(ticks.c.flow.in_(flows))).scalars())
    return states | {
        flow: "at rest until its schedule" if flow in scheduled else "stopped"
        for flow in connection.execute(stopped).scalars()
    }


def _of(flow: str, life: str) -> Any:
    return select(first_loads).where(first_loads.c.flow == flow, first_loads.c.life == life)


def _to_awaited(row: Any) -> Awaited:
    return Awaited(row.awaits, None if row.source_end is None else json.loads(row.source_end), row.read_at is not None)
