"""Flows that a job stops while it works: what was wanted of each is remembered, and wanted again when it is done."""

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, select

from include.control import commands, orders
from include.control.schema import desired


def stop(
    connection: Connection, flows: Iterable[str], remembered: Mapping[str, tuple[str, str]], who: str, why: str
) -> dict[str, tuple[str, str]]:
    """Want these stopped; returns, by flow, the state that was wanted and its reason.

    remembered: by an earlier try, which stays.
    """
    found = dict(remembered)
    names = [flow for flow in flows if flow not in found]
    orders.lock(connection, names)
    for flow in names:
        row = connection.execute(select(desired).where(desired.c.flow == flow)).one_or_none()
        found[flow] = (row.state, row.reason) if row else ("running", "")
        commands.want(connection, flow, "stopped", why)
        commands.record(connection, who, "stop", flow, why, "stops after the batch in hand")
    return found


def let_go(connection: Connection, remembered: Mapping[str, tuple[str, str]], who: str, why: str) -> None:
    """Want of each what was wanted before, at once."""
    orders.lock(connection, remembered)
    for flow, (state, reason) in remembered.items():
        commands.want(connection, flow, state, reason)
        commands.forgive(connection, flow)
        commands.record(connection, who, "start", flow, why, f"is {state} again")
