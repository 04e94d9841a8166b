"""Flows that run at the times of a schedule: asked to catch up when one has come, at rest in between."""

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, Engine, delete, select

from include.control import commands, database, held, orders
from include.control.commands import Action, Command
from include.control.schema import desired, ticks

WHO = "schedule"


def follow(
    engine: Engine, schedules: Mapping[str, str | None], next_tick: Callable[[str, float], float]
) -> dict[str, str]:
    """Ask of flows what is due; returns what was asked, by flow. One that a person has stopped is left alone.

    schedules: of all flows; None: it runs all the time. next_tick: the first time of a schedule after a moment, both in
    seconds since 1970. Several that were missed are caught up by one. Raises Unreachable.
    """
    said: dict[str, str] = {}
    with database.transaction(engine) as connection:
        followed_at = {row.flow: row.at for row in connection.execute(select(ticks))}
        # One that a job holds still is asked when that has let it go.
        still = {flow for remembered in held.by_job(connection).values() for flow in remembered}
        flows = {flow: one for flow, one in schedules.items() if (one or flow in followed_at) and flow not in still}
        orders.lock(connection, flows)
        wanted = {row.flow: row.state for row in connection.execute(select(desired))}
        now = database.now(connection)
        for flow, schedule in flows.items():
            at, state = followed_at.get(flow), wanted.get(flow)
            is_due = schedule is not None and at is not None and next_tick(schedule, at) <= now
            if action := _action(schedule, state, is_due):
                why = f"its schedule is '{schedule}'" if schedule else "its schedule was taken out"
                said |= commands.carry_out(connection, Command(action, (flow,), WHO, why))
                _remember(connection, flow, now if schedule else None)
    return said


def _action(schedule: str | None, state: str | None, is_due: bool) -> Action | None:
    if schedule is None:
        return Action.START
    match state:
        case None:
            return Action.STOP
        case "running":
            # A person started it, or it had no schedule before.
            return Action.DRAIN
        case "stopped" if is_due:
            return Action.CATCH_UP
    return None


def _remember(connection: Connection, flow: str, now: float | None) -> None:
    """now: when its schedule was followed; None where it has none any more."""
    connection.execute(delete(ticks).where(ticks.c.flow == flow))
    if now is not None:
        connection.execute(ticks.insert().values(flow=flow, at=now))
