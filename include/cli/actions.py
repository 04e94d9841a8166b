"""The commands of the on-call engineer, which work while Airflow hangs: each stores a command as DAG `control.stream`
does, and waits until the drivers have followed it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer
from sqlalchemy import Connection, Engine, select

from include import catalog
from include.catalog import Catalog
from include.control import commands
from include.control.commands import ACKNOWLEDGED_HOURS, Action, Command, Result
from include.control.flows import incidents, orders, placements
from include.control.flows.incidents import LONGEST_HOURS
from include.control.leases import lease
from include.control.requesters import system_user
from include.control.store import database
from include.control.store.schema import drivers
from include.control.supervision import supervision, supervisor_presence
from include.errors import SluiceError, UsageError
from include.settings import settings

LOOK_SECONDS = 0.5
WAIT_SECONDS = 180

OneFlow = Annotated[str | None, typer.Argument(metavar="FLOW", help="As `sluice status` names it.")]
Driver = Annotated[str | None, typer.Option(metavar="NAME", help="All flows of this driver, instead of one flow.")]
Reason = Annotated[str, typer.Option(metavar="WHY", help="For whoever reads the audit.")]
Wait = Annotated[float, typer.Option("--wait-seconds", metavar="S", min=0, help="Wait so long until it is done.")]


class NotDone(SluiceError):
    """The command is stored, and was not followed in time."""


def restart(reason: Reason, flow: OneFlow = None, driver: Driver = None, wait_seconds: Wait = WAIT_SECONDS) -> None:
    """Restart a flow, or the process of a driver, after the current batch, and wait until it makes progress again."""
    _give(Action.RESTART, flow, driver, reason, wait_seconds)


def stop(reason: Reason, flow: OneFlow = None, driver: Driver = None, wait_seconds: Wait = WAIT_SECONDS) -> None:
    """Stop a flow after its current batch, whatever its schedule, until somebody starts it. Wait until it has ended."""
    _give(Action.STOP, flow, driver, reason, wait_seconds)


def start(reason: Reason, flow: OneFlow = None, driver: Driver = None, wait_seconds: Wait = WAIT_SECONDS) -> None:
    """Start a flow that is stopped or has failed, and wait until it makes progress."""
    _give(Action.START, flow, driver, reason, wait_seconds)


def drain(reason: Reason, flow: OneFlow = None, driver: Driver = None, wait_seconds: Wait = WAIT_SECONDS) -> None:
    """Let a flow read what its source holds now, then stop it, and wait until it has."""
    _give(Action.DRAIN, flow, driver, reason, wait_seconds)


def move(
    flow: Annotated[str, typer.Argument(metavar="FLOW", help="As `sluice status` names it.")],
    to: Annotated[str, typer.Option("--to", metavar="DRIVER", help="Which runs it from then on.")],
    reason: Reason,
    wait_seconds: Wait = WAIT_SECONDS,
) -> None:
    """Move a flow to another driver, which goes on after its current batch, and wait until it makes progress there."""
    _give(Action.MOVE, flow, None, reason, wait_seconds, to)


def acknowledge(
    reason: Reason,
    flow: Annotated[str | None, typer.Argument(metavar="FLOW", help="A flow, a table, or what an alarm names.")] = None,
    driver: Driver = None,
    hours: Annotated[float, typer.Option(metavar="H", help="Until then, unless it changes.")] = ACKNOWLEDGED_HOURS,
) -> None:
    """Take on an alarm, with all that has the same cause: no red task and no message for some hours."""
    if not 0 < hours <= LONGEST_HOURS:
        raise UsageError(f"--hours is {hours:g}: set it to a number above 0 and up to {LONGEST_HOURS}")
    engine = database.connect(settings().control_url)
    tables = placements.place(engine, catalog.load())
    is_named = flow and (flow in tables.readers or flow in tables.tables or incidents.open_of(engine, flow))
    names = (flow,) if flow and is_named and not driver else _flows(tables, flow, driver)
    with database.transaction(engine) as connection:
        results = commands.execute_in(
            connection, Command(Action.ACKNOWLEDGE, names, system_user(), reason, hours=hours)
        )
    if not any(result.has_effect for result in results.values()):
        raise NotDone(_sentences(results))
    print(_sentences(results))


def _give(
    action: Action, flow: str | None, driver: str | None, reason: str, wait_seconds: float, to: str | None = None
) -> None:
    engine = database.connect(settings().control_url)
    tables = placements.place(engine, catalog.load())
    flows = _flows(tables, flow, driver)
    names = list(tables.drivers()) if driver is None else [driver]
    runs_all = [name for name in names if set(flows) <= {table.flow for table in tables.drivers()[name]}]
    driver_name = to or (runs_all or [""])[0]
    with database.transaction(engine) as connection:
        before = _look(connection, flows, driver_name)
        results = commands.execute_in(connection, Command(action, flows, system_user(), reason, driver, to=to))
        # In the same transaction: a driver may follow at once.
        asked = _look(connection, flows, driver_name)
    print(_sentences(results), flush=True)
    is_new = any(result.has_effect for result in results.values())
    goal = _goal(action, before if driver and is_new else None, asked if is_new else None, to)
    _wait(engine, action, flows, driver_name, goal, wait_seconds)


def _flows(tables: Catalog, flow: str | None, driver: str | None) -> tuple[str, ...]:
    if (flow is None) == (driver is None):
        raise UsageError("name a FLOW, or else --driver NAME for all flows of a driver, and not both")
    if flow is not None:
        return (tables.flow(flow).flow,)
    assert driver is not None
    if driver not in tables.drivers():
        raise UsageError(f"--driver is {driver!r}: there are {', '.join(tables.drivers())}")
    return tuple(table.flow for table in tables.drivers()[driver])


def _sentences(results: dict[str, Result]) -> str:
    return "\n".join(f"{target}: {result}" for target, result in results.items())


@dataclass(frozen=True)
class _Seen:
    """A flow, as the control database shows it. driver: of who holds its lease; empty: nobody. intended_at: of its
    newest start. has_signed: it has shown progress since. epoch: of its driver's lease.
    """

    wanted: str
    driver: str
    intended_at: float
    has_signed: bool
    failure: str | None
    epoch: int

    @property
    def is_held(self) -> bool:
        return bool(self.driver)


def _look(connection: Connection, flows: tuple[str, ...], driver: str) -> dict[str, _Seen]:
    held, epoch = lease.alive(connection), lease.epoch(connection, lease.driver_lease(driver))
    run_of = orders.find(connection, list(flows))
    return {
        flow: _Seen(
            orders.order(connection, flow).state,
            held[flow].driver if flow in held else "",
            run_of[flow].intended_at or 0,
            run_of[flow].sign_at is not None,
            run_of[flow].failure,
            epoch,
        )
        for flow in flows
    }


Goal = Callable[[str, _Seen], bool]


def _goal(
    action: Action, before: dict[str, _Seen] | None, asked: dict[str, _Seen] | None, to: str | None = None
) -> Goal:
    """Whether a flow has come to where the action leads. before: if its driver is to be another process than then.
    asked: if its query is to be another than then. to: the driver that is to run it.
    """

    def works(flow: str, seen: _Seen) -> bool:
        return seen.is_held and seen.has_signed

    def is_stopped(flow: str, seen: _Seen) -> bool:
        return seen.wanted == "stopped" and not seen.is_held

    def works_anew(flow: str, seen: _Seen) -> bool:
        if seen.wanted == "stopped":
            # A restart of its driver does not start it.
            return before is not None and not seen.is_held
        is_new_process = before is None or seen.epoch > before[flow].epoch
        is_new_query = asked is None or seen.intended_at > asked[flow].intended_at
        return is_new_process and is_new_query and works(flow, seen)

    def has_moved(flow: str, seen: _Seen) -> bool:
        return seen.driver == to and works(flow, seen) or is_stopped(flow, seen)

    goals: dict[Action, Goal] = {Action.RESTART: works_anew, Action.START: works, Action.MOVE: has_moved}
    return goals.get(action, is_stopped)


def _wait(engine: Engine, action: Action, flows: tuple[str, ...], driver: str, goal: Goal, wait_seconds: float) -> None:
    begun = time.monotonic()
    while True:
        with database.reading(engine) as connection:
            seen_flows = _look(connection, flows, driver)
        pending = {flow: seen for flow, seen in seen_flows.items() if not goal(flow, seen)}
        if not pending:
            break
        if action is Action.RESTART and all(seen.wanted == "stopped" for seen in pending.values()):
            raise NotDone(f"{', '.join(pending)} is stopped, and stays so: sluice start begins it")
        _require_launcher(engine, action, driver)
        if time.monotonic() - begun >= wait_seconds:
            raise NotDone(_unfinished(pending, wait_seconds))
        time.sleep(LOOK_SECONDS)
    print(f"done after {time.monotonic() - begun:.0f} s: {', '.join(flows)} {_outcome(action)}")


def _outcome(action: Action) -> str:
    if action is Action.MOVE:
        return "moved"
    return "at work" if action in (Action.RESTART, Action.START) else "stopped"


def _require_launcher(engine: Engine, action: Action, driver: str) -> None:
    """Raises NotDone if the driver has to be launched, and no supervisor is there to do that."""
    if action is Action.STOP or not driver:
        return
    with database.reading(engine) as connection:
        is_alive = lease.driver_lease(driver) in lease.alive(connection)
        launched = connection.execute(select(drivers.c.handle).where(drivers.c.driver == driver)).scalar_one_or_none()
    comes_up = launched is not None and not supervision.has_ended_here(launched)
    if is_alive or comes_up:
        return
    if absence := supervisor_presence.read(engine).absence:
        raise NotDone(
            f"the command is stored, but driver '{driver}' does not run, and only the supervisor launches it. {absence}"
        )


def _unfinished(pending: dict[str, _Seen], wait_seconds: float) -> str:
    parts = [
        f"{flow} ({seen.failure or ('its current batch has not ended' if seen.is_held else 'it does not run')})"
        for flow, seen in pending.items()
    ]
    return (
        f"the command is stored, and not done after {wait_seconds:g} s for {', '.join(parts)}: "
        f"`sluice status` shows what comes of it"
    )
