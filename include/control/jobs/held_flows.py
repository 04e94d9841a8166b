"""The flows that each unfinished job keeps stopped, and the state of each flow after the job releases it.

Every unfinished job stores them in its own row. Whoever changes them locks the rows of the flows first.
"""

import json
from collections.abc import Collection, Mapping

from sqlalchemy import Column, Connection, Table, select, update

from include.control.jobs.job_id import JobId, JobKind
from include.control.store.job_schema import backfills, rewinds

# By flow, the state wanted of it after the job, and the reason.
Remembered = Mapping[str, tuple[str, str]]
STORED: dict[JobKind, tuple[Table, Column[str]]] = {
    JobKind.BACKFILL: (backfills, backfills.c.readers),
    JobKind.REWIND: (rewinds, rewinds.c.stopped),
}


def stored_of(connection: Connection, job: JobId) -> dict[str, tuple[str, str]]:
    """The flows that a job has stored. The job's row is locked to the end of the transaction."""
    table, column = STORED[job.kind]
    stored = select(column).where(table.c.number == job.number).with_for_update()
    return parse(connection.execute(stored).scalar_one())


def store(connection: Connection, job: JobId, remembered: Remembered | None) -> None:
    """Store the flows of a job. None: it keeps none stopped any more."""
    table, column = STORED[job.kind]
    text = None if remembered is None else json.dumps(remembered)
    connection.execute(update(table).where(table.c.number == job.number).values({column: text}))


def by_job(connection: Connection) -> dict[JobId, dict[str, tuple[str, str]]]:
    """By unfinished job, the flows it has stored; the oldest job of each kind first."""
    return {
        JobId(kind, row.number): parse(row.flows)
        for kind, (table, column) in STORED.items()
        for row in connection.execute(
            select(table.c.number, column.label("flows"))
            .where(table.c.ended_at.is_(None), column.is_not(None))
            .order_by(table.c.number)
        )
    }


def holding_jobs(connection: Connection, flow: str) -> tuple[list[JobId], tuple[str, str]] | None:
    """The jobs that keep a flow stopped, and the state and reason wanted afterwards; None if no job does."""
    stored = {job: flows[flow] for job, flows in by_job(connection).items() if flow in flows}
    return (list(stored), next(iter(stored.values()))) if stored else None


def rewinds_of(connection: Connection, flows: Collection[str]) -> list[JobId]:
    """The rewinds that keep one of these flows stopped."""
    stored = by_job(connection).items()
    return [job for job, held in stored if job.kind is JobKind.REWIND and not held.keys().isdisjoint(flows)]


def defer_state(connection: Connection, flow: str, state: str, reason: str) -> None:
    """Store what is wanted of a flow in every job that keeps it stopped. It applies once the last of them ends."""
    for job, flows in by_job(connection).items():
        if flow in flows:
            store(connection, job, {**stored_of(connection, job), flow: (state, reason)})


def parse(text: str | None) -> dict[str, tuple[str, str]]:
    """Parse the JSON of a job's row. Returns the state and reason by flow."""
    return {flow: (state, reason) for flow, (state, reason) in json.loads(text or "{}").items()}
