"""Stops flows for the duration of a job. The job stores what was wanted of each flow, and restores it when it is done.

If several jobs have stopped a flow, each stores what was wanted of it, and the last one to end lets it resume.
"""

from collections.abc import Iterable

from sqlalchemy import Connection, select, update

from include.control import commands, orders
from include.control.jobs import held_flows
from include.control.jobs.job_id import JobId
from include.control.store.schema import desired, runs


def stop(connection: Connection, job: JobId, flows: Iterable[str], requester: str, reason: str) -> None:
    """Set these flows to stopped, and store what was wanted of them before.

    Values that an earlier try of the job has stored are kept. A flow that was started since then is stopped again.
    """
    names = list(flows)
    orders.lock(connection, names)
    stored, held_by_others = held_flows.stored_of(connection, job), _held_by_others(connection, job)
    for flow in names:
        row = connection.execute(select(desired).where(desired.c.flow == flow)).one_or_none()
        state, wanted_reason = (row.state, row.reason) if row else ("running", "")
        if flow in stored and state == "stopped":
            continue
        is_held_by_other = flow in held_by_others and state == "stopped"
        stored[flow] = held_by_others[flow] if is_held_by_other else (state, wanted_reason)
        commands.set_wanted(connection, flow, "stopped", reason)
        commands.audit(connection, requester, "stop", flow, reason, "stops after the batch in hand")
    held_flows.store(connection, job, stored)


def resume(connection: Connection, job: JobId, requester: str) -> list[str]:
    """Restore what was wanted of each flow, unless another job keeps it stopped. Returns the names of all flows.

    Each flow begins a new turn, so a failure from the time before is ignored, even if it is reported later.
    """
    # Lock the flows before the job's row, in the order of every other writer.
    orders.lock(connection, held_flows.by_job(connection).get(job, {}))
    stored, others, cause = (
        held_flows.stored_of(connection, job),
        _held_by_others(connection, job),
        f"{job} lets it go on",
    )
    for flow, (state, reason) in stored.items():
        if flow in others:
            commands.audit(
                connection, requester, "start", flow, cause, "stays stopped: another job is not done with it"
            )
            continue
        commands.set_wanted(connection, flow, state, reason)
        commands.clear_failure(connection, flow)
        connection.execute(update(runs).where(runs.c.flow == flow).values(turn=runs.c.turn + 1))
        commands.audit(connection, requester, "start", flow, cause, f"is {state} again")
    held_flows.store(connection, job, None)
    return list(stored)


def _held_by_others(connection: Connection, job: JobId) -> dict[str, tuple[str, str]]:
    """What other unfinished jobs have stored of the flows they have stopped."""
    return {
        flow: wanted
        for other, flows in held_flows.by_job(connection).items()
        if other != job
        for flow, wanted in flows.items()
    }
