"""Flows that a job stops while it works: what was wanted of each is remembered, and wanted again when it is done.

Of several jobs that have stopped one flow, all remember what is wanted of it, and the last lets it go on.
"""

from collections.abc import Iterable

from sqlalchemy import Connection, select, update

from include.control import commands, orders
from include.control.jobs import held_flows
from include.control.store.schema import desired, runs


def stop(connection: Connection, job: str, flows: Iterable[str], who: str, why: str) -> None:
    """Want these stopped, and remember what was wanted of them. job: "backfill 3", say.

    What an earlier try of it has remembered stays; who was woken since is stopped again.
    """
    names = list(flows)
    orders.lock(connection, names)
    found, elsewhere = held_flows.of(connection, job), _by_others(connection, job)
    for flow in names:
        row = connection.execute(select(desired).where(desired.c.flow == flow)).one_or_none()
        state, reason = (row.state, row.reason) if row else ("running", "")
        if flow in found and state == "stopped":
            continue
        is_held = flow in elsewhere and state == "stopped"
        found[flow] = elsewhere[flow] if is_held else (state, reason)
        commands.want(connection, flow, "stopped", why)
        commands.record(connection, who, "stop", flow, why, "stops after the batch in hand")
    held_flows.keep(connection, job, found)


def resume(connection: Connection, job: str, who: str) -> list[str]:
    """Want of each flow what is remembered, unless another job has it stopped as well; returns their names.

    Each begins another turn: how it failed while it was held still, whenever that is told, counts no more.
    """
    # The flows first, as whoever changes what is wanted of one does.
    orders.lock(connection, held_flows.by_job(connection).get(job, {}))
    remembered, elsewhere, why = held_flows.of(connection, job), _by_others(connection, job), f"{job} lets it go on"
    for flow, (state, reason) in remembered.items():
        if flow in elsewhere:
            commands.record(connection, who, "start", flow, why, "stays stopped: another job is not done with it")
            continue
        commands.want(connection, flow, state, reason)
        commands.clear_failure(connection, flow)
        connection.execute(update(runs).where(runs.c.flow == flow).values(turn=runs.c.turn + 1))
        commands.record(connection, who, "start", flow, why, f"is {state} again")
    held_flows.keep(connection, job, None)
    return list(remembered)


def _by_others(connection: Connection, job: str) -> dict[str, tuple[str, str]]:
    """What other jobs that are not done remember of the flows they have stopped."""
    return {
        flow: wish
        for other, flows in held_flows.by_job(connection).items()
        if other != job
        for flow, wish in flows.items()
    }
