"""The flows that jobs keep stopped. A job remembers what was wanted of each, stops it, and restores that at its end.

Every unfinished job stores its flows in its own row. Whoever changes them locks the rows of the flows first. If several
jobs have stopped a flow, the last one to end lets it resume.
"""

import json
from collections.abc import Collection, Iterable, Mapping

from sqlalchemy import Connection, select, update

from include.control.flows import orders
from include.control.flows.queue import is_job
from include.control.store import audit
from include.control.store.job_id import JobId, JobKind
from include.control.store.job_schema import jobs
from include.control.store.schema import desired

# By flow, the state wanted of it after the job, and the reason.
Remembered = Mapping[str, tuple[str, str]]


def stored_of(connection: Connection, job: JobId) -> dict[str, tuple[str, str]]:
    """The flows that a job has stored. The job's row is locked to the end of the transaction."""
    stored = select(jobs.c.stopped).where(is_job(job)).with_for_update()
    return parse(connection.execute(stored).scalar_one())


def store(connection: Connection, job: JobId, remembered: Remembered | None) -> None:
    """Store the flows of a job. None: it keeps none stopped any more."""
    stopped = None if remembered is None else json.dumps(remembered)
    connection.execute(update(jobs).where(is_job(job)).values(stopped=stopped))


def by_job(connection: Connection) -> dict[JobId, dict[str, tuple[str, str]]]:
    """By unfinished job, the flows it has stored; the oldest job of each kind first."""
    holding = select(jobs).where(jobs.c.stopped.is_not(None), jobs.c.ended_at.is_(None))
    rows = connection.execute(holding.order_by(jobs.c.kind, jobs.c.number))
    return {JobId(row.kind, row.number): parse(row.stopped) for row in rows}


def holding_jobs(connection: Connection, flow: str) -> tuple[list[JobId], tuple[str, str]] | None:
    """The jobs that keep a flow stopped, and the state and reason wanted afterwards; None if no job does."""
    stored = {job: flows[flow] for job, flows in by_job(connection).items() if flow in flows}
    return (list(stored), next(iter(stored.values()))) if stored else None


def rewinds_of(connection: Connection, flows: Collection[str]) -> list[JobId]:
    """The rewinds that keep one of these flows stopped."""
    stored = by_job(connection).items()
    return [job for job, held in stored if job.kind == JobKind.REWIND and not held.keys().isdisjoint(flows)]


def defer_state(connection: Connection, flow: str, state: str, reason: str) -> None:
    """Store what is wanted of a flow in every job that keeps it stopped. It applies once the last of them ends."""
    for job, flows in by_job(connection).items():
        if flow in flows:
            store(connection, job, {**stored_of(connection, job), flow: (state, reason)})


def parse(text: str | None) -> dict[str, tuple[str, str]]:
    """Parse the JSON of a job's row. Returns the state and reason by flow."""
    return {flow: (state, reason) for flow, (state, reason) in json.loads(text or "{}").items()}


def stop(connection: Connection, job: JobId, flows: Iterable[str], requester: str, reason: str) -> None:
    """Set these flows to stopped, and store what was wanted of them before.

    Values that an earlier try of the job has stored are kept. A flow that was started since then is stopped again.
    """
    names = list(flows)
    orders.lock(connection, names)
    stored, held_by_others = stored_of(connection, job), _held_by_others(connection, job)
    for flow in names:
        row = connection.execute(select(desired).where(desired.c.flow == flow)).one_or_none()
        state, wanted_reason = (row.state, row.reason) if row else ("running", "")
        if flow in stored and state == "stopped":
            continue
        is_held_by_other = flow in held_by_others and state == "stopped"
        stored[flow] = held_by_others[flow] if is_held_by_other else (state, wanted_reason)
        orders.set_wanted(connection, flow, "stopped", reason)
        audit.record(connection, requester, "stop", flow, reason, "stops after the current batch")
    store(connection, job, stored)


def resume(connection: Connection, job: JobId, requester: str) -> list[str]:
    """Restore what was wanted of each flow, unless another job keeps it stopped. Returns the names of all flows.

    Each flow gets a new restart number, so a failure from the time before is ignored, even if it is reported later.
    """
    # Lock the flows before the job's row, in the order of every other writer.
    orders.lock(connection, by_job(connection).get(job, {}))
    stored, others = stored_of(connection, job), _held_by_others(connection, job)
    cause = f"{job} lets it go on"
    for flow, (state, reason) in stored.items():
        if flow in others:
            audit.record(connection, requester, "start", flow, cause, "stays stopped: another job is not done with it")
            continue
        orders.set_wanted(connection, flow, state, reason)
        orders.restart(connection, flow)
        audit.record(connection, requester, "start", flow, cause, f"is {state} again")
    store(connection, job, None)
    return list(stored)


def _held_by_others(connection: Connection, job: JobId) -> dict[str, tuple[str, str]]:
    """What other unfinished jobs have stored of the flows they have stopped."""
    return {
        flow: wanted for other, flows in by_job(connection).items() if other != job for flow, wanted in flows.items()
    }
