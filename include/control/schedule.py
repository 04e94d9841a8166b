"""Flows that run at the times of a schedule: asked to catch up when one has come, at rest in between."""

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, Engine, delete, select

from include.control import commands, orders
from include.control.commands import Action, Command
from include.control.jobs import held_flows
from include.control.store import database
from include.control.store.schema import desired, ticks

WHO = "schedule"


def follow(
    engine: Engine, schedules: Mapping[str, str | None], next_tick: Callable[[str, float], float]
) -> dict[str, str]:
    """Ask of flows what is due; returns what was asked, by flow. One that a person has stopped is left alone.

    schedules: of all flows; None: it runs all the time. next_tick: the first time of a schedule after a moment, both in
    seconds since 1970. Several that were missed are caught up by one. Raises Unreachable.
    """
    with database.reading(engine) as connection:
        followed_at = {row.flow: row.at for row in connection.execute(select(ticks))}
        wanted = {row.flow: row.state for row in connection.execute(select(desired))}
        now = database.now(connection)
    said: dict[str, str] = {}
    for flow, schedule in schedules.items():
        at = followed_at.get(flow)
        # Followed later than now: by a clock that was put back since.
        is_due = schedule is not None and at is not None and (at > now or next_tick(schedule, at) <= now)
        if (schedule or at is not None) and _action(schedule, wanted.get(flow), is_due):
            # Each in a transaction of its own: hundreds that are due at one time would hold up everybody.
            said |= _follow(engine, flow, schedule, at, is_due)
    return said


def _follow(engine: Engine, flow: str, schedule: str | None, at: float | None, is_due: bool) -> dict[str, str]:
    """What is asked of the flow, unless a person has said otherwise since it was looked at.

    at: when its schedule had last been followed then.
    """
    with database.transaction(engine) as connection:
        orders.lock(connection, [flow])
        state = connection.execute(select(desired.c.state).where(desired.c.flow == flow)).scalar_one_or_none()
        followed_at = connection.execute(select(ticks.c.at).where(ticks.c.flow == flow)).scalar_one_or_none()
        action = _action(schedule, state, is_due)
        # One that a job holds still is asked when that has let it go.
        if action is None or followed_at != at or held_flows.still(connection, flow):
            return {}
        why = f"its schedule is '{schedule}'" if schedule else "its schedule was taken out"
        said = commands.carry_out(connection, Command(action, (flow,), WHO, why))
        _remember(connection, flow, database.now(connection) if schedule else None)
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
