"""Flows that run at the times of a schedule: they catch up when one is due, and rest in between."""

from collections.abc import Callable, Mapping

from sqlalchemy import Connection, Engine, delete, select

from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders
from include.control.jobs import held_flows
from include.control.store import audit, database
from include.control.store.schema import desired, ticks

REQUESTER = audit.SCHEDULE


def follow(
    engine: Engine, schedules: Mapping[str, str | None], next_tick: Callable[[str, float], float]
) -> dict[str, str]:
    """Issue the commands that are due. Returns by flow what was asked. A flow that a person has stopped is left alone.

    schedules: of all flows; None: it runs all the time. next_tick: the first time of a schedule after a time, both in
    seconds since 1970. Several missed times are caught up by one run. Raises Unreachable.
    """
    with database.reading(engine) as connection:
        followed_at = {row.flow: row.at for row in connection.execute(select(ticks))}
        state_of = {row.flow: row.state for row in connection.execute(select(desired))}
        now_seconds = database.now(connection)
    results: dict[str, str] = {}
    for flow, schedule in schedules.items():
        last_at = followed_at.get(flow)
        # A time in the future was stored before the clock was set back.
        is_due = (
            schedule is not None
            and last_at is not None
            and (last_at > now_seconds or next_tick(schedule, last_at) <= now_seconds)
        )
        if (schedule or last_at is not None) and _action(schedule, state_of.get(flow), is_due):
            # One transaction per flow: hundreds of due flows in one would block every other writer.
            results |= _follow(engine, flow, schedule, last_at, is_due)
    return results


def _follow(engine: Engine, flow: str, schedule: str | None, at: float | None, is_due: bool) -> dict[str, str]:
    """Issue the command for one flow, unless a person has changed its state since `follow` read it.

    at: when its schedule was last followed, in seconds since 1970.
    """
    with database.transaction(engine) as connection:
        orders.lock(connection, [flow])
        state = connection.execute(select(desired.c.state).where(desired.c.flow == flow)).scalar_one_or_none()
        followed_at = connection.execute(select(ticks.c.at).where(ticks.c.flow == flow)).scalar_one_or_none()
        action = _action(schedule, state, is_due)
        # A flow that a job keeps stopped gets its command after the job.
        if action is None or followed_at != at or held_flows.holding_jobs(connection, flow):
            return {}
        reason = f"its schedule is '{schedule}'" if schedule else "its schedule was taken out"
        results = commands.execute_in(connection, Command(action, (flow,), REQUESTER, reason))
        _store_tick(connection, flow, database.now(connection) if schedule else None)
    return {flow: result.message for flow, result in results.items()}


def _action(schedule: str | None, state: str | None, is_due: bool) -> Action | None:
    if schedule is None:
        return Action.START
    match state:
        case None:
            return Action.STOP
        case "running":
            # A person has started it, or it had no schedule before.
            return Action.DRAIN
        case "stopped" if is_due:
            return Action.CATCH_UP
    return None


def _store_tick(connection: Connection, flow: str, at: float | None) -> None:
    """at: when the schedule was followed, in seconds since 1970; None if the flow has no schedule any more."""
    connection.execute(delete(ticks).where(ticks.c.flow == flow))
    if at is not None:
        connection.execute(ticks.insert().values(flow=flow, at=at))
