"""Flows that jobs hold still while they work, and what is wanted of each once they let it go.

Every job that is not done remembers that in its own row. Whoever changes it holds the rows of the flows.
"""

import json
from collections.abc import Collection, Mapping

from sqlalchemy import Column, Connection, Table, select, update

from include.control.store.job_schema import backfills, rewinds

# By flow, the state that is wanted of it, and why.
Remembered = Mapping[str, tuple[str, str]]
KINDS: dict[str, tuple[Table, Column[str]]] = {
    "backfill": (backfills, backfills.c.readers),
    "rewind": (rewinds, rewinds.c.stopped),
}


def of(connection: Connection, job: str) -> dict[str, tuple[str, str]]:
    """What a job remembers, "backfill 3" say; held to the end of the transaction."""
    table, column, number = _place(job)
    own = select(column).where(table.c.number == number).with_for_update()
    return read(connection.execute(own).scalar_one())


def keep(connection: Connection, job: str, remembered: Remembered | None) -> None:
    """None: it holds nothing any more."""
    table, column, number = _place(job)
    text = None if remembered is None else json.dumps(remembered)
    connection.execute(update(table).where(table.c.number == number).values({column: text}))


def by_job(connection: Connection) -> dict[str, dict[str, tuple[str, str]]]:
    """What each job that is not done remembers, oldest first of each kind."""
    return {
        f"{kind} {row.number}": read(row.flows)
        for kind, (table, column) in KINDS.items()
        for row in connection.execute(
            select(table.c.number, column.label("flows"))
            .where(table.c.ended_at.is_(None), column.is_not(None))
            .order_by(table.c.number)
        )
    }


def still(connection: Connection, flow: str) -> tuple[list[str], tuple[str, str]] | None:
    """The jobs that hold a flow still, and what is wanted of it then; None where none does."""
    found = {job: flows[flow] for job, flows in by_job(connection).items() if flow in flows}
    return (list(found), next(iter(found.values()))) if found else None


def rewinds_of(connection: Connection, flows: Collection[str]) -> str:
    """The rewinds that hold one of these flows still, in words; empty where none does."""
    found = by_job(connection).items()
    return " and ".join(job for job, own in found if job.startswith("rewind") and not own.keys().isdisjoint(flows))


def want(connection: Connection, flow: str, state: str, reason: str) -> None:
    """Of a flow that jobs hold still, once the last of them lets it go."""
    for job, flows in by_job(connection).items():
        if flow in flows:
            keep(connection, job, {**of(connection, job), flow: (state, reason)})


def read(text: str | None) -> dict[str, tuple[str, str]]:
    return {flow: (state, reason) for flow, (state, reason) in json.loads(text or "{}").items()}


def _place(job: str) -> tuple[Table, Column[str], int]:
    kind, number = job.rsplit(" ", 1)
    return *KINDS[kind], int(number)
