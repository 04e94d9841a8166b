"""Flows that a job stops while it works: what was wanted of each is remembered, and wanted again when it is done.

Of several jobs that have stopped one flow, all remember what was wanted before the first, and the last lets it go on.
"""

import json
from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, select

from include.control import commands, orders
from include.control.job_schema import backfills, rewinds
from include.control.schema import desired

# By flow, the state that was wanted of it, and why.
Remembered = Mapping[str, tuple[str, str]]


def stop(
    connection: Connection, job: str, flows: Iterable[str], remembered: Remembered, who: str, why: str
) -> dict[str, tuple[str, str]]:
    """Want these stopped; returns what is to be remembered.

    job: "backfill 3", say. remembered: by an earlier try of it, which stays.
    """
    found, elsewhere = dict(remembered), _by_others(connection, job)
    names = [flow for flow in flows if flow not in found]
    orders.lock(connection, names)
    for flow in names:
        row = connection.execute(select(desired).where(desired.c.flow == flow)).one_or_none()
        now = (row.state, row.reason) if row else ("running", "")
        found[flow] = elsewhere[flow] if flow in elsewhere and now[0] == "stopped" else now
        commands.want(connection, flow, "stopped", why)
        commands.record(connection, who, "stop", flow, why, "stops after the batch in hand")
    return found


def let_go(connection: Connection, job: str, remembered: Remembered, who: str) -> None:
    """Want of each what was wanted before, at once, unless another job has it stopped as well."""
    elsewhere, why = _by_others(connection, job), f"{job} lets it go on"
    orders.lock(connection, remembered)
    for flow, (state, reason) in remembered.items():
        if flow in elsewhere:
            commands.record(connection, who, "start", flow, why, "stays stopped: another job is not done with it")
            continue
        commands.want(connection, flow, state, reason)
        commands.forgive(connection, flow)
        commands.record(connection, who, "start", flow, why, f"is {state} again")


def _by_others(connection: Connection, job: str) -> dict[str, tuple[str, str]]:
    """What other jobs that are not done remember of the flows they have stopped."""
    left = (
        (
            "backfill",
            select(backfills.c.number, backfills.c.readers.label("flows")).where(backfills.c.ended_at.is_(None)),
        ),
        ("rewind", select(rewinds.c.number, rewinds.c.stopped.label("flows")).where(rewinds.c.ended_at.is_(None))),
    )
    return {
        flow: (state, reason)
        for kind, query in left
        for row in connection.execute(query)
        if f"{kind} {row.number}" != job
        for flow, (state, reason) in json.loads(row.flows or "{}").items()
    }
