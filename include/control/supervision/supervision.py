"""The supervisor's work on one driver: what it sees of each flow, and what it decides."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, update

from include.control import acknowledgements, driver_rows, incidents, lease, orders
from include.control.decide import HEALTHY_SECONDS, OF_RUNNING_FLOWS, START_SECONDS, Decision, State, decide
from include.control.jobs import windows
from include.control.observed_flow import Failure, ObservedFlow, Start
from include.control.process import Holder, Process
from include.control.store import clock, database
from include.control.store.schema import desired, drivers, pulses, runs
from include.control.supervision import orphaned_flows, shutdown
from include.control.supervision.shutdown import Shutdown
from include.spec import table_of

NAME = "supervise"


@dataclass(frozen=True)
class SourceHealth:
    """A flow's source and rows, in words. waits_for: what of the source is away. backlog: how the flow falls behind.
    expires: what is about to be deleted unread. rejects: how its rows end elsewhere than in the table. not_fresh: how
    the table's promise is broken.
    """

    waits_for: str | None = None
    backlog: str | None = None
    expires: str | None = None
    rejects: str | None = None
    not_fresh: str | None = None


@dataclass(frozen=True)
class Settlement:
    """decisions: one for each flow. acknowledged: of flows whose alarm a person has taken on, by whom and until when.
    launch_since: start the driver, by an intent of this moment. kill: end it now;
    holder: who it is, where it holds its lease.
    """

    decisions: dict[str, Decision]
    acknowledged: dict[str, str]
    launch_since: float | None
    kill: bool
    holder: Holder | None


@dataclass(frozen=True)
class _Driver:
    """is_alive: it lives or may still come up. is_up: it holds its lease. restart_seconds_ago: since a restart was
    asked for that it owes.

    abandoned: by flow, the job that has stopped it and died. shutdown: the platform is down, driver and all.
    """

    row: Any
    held: dict[str, Holder]
    is_alive: bool
    is_up: bool
    restart_seconds_ago: float | None
    abandoned: dict[str, Failure]
    shutdown: Shutdown | None


def handles(engine: Engine) -> dict[str, str]:
    """By driver, the text by which its launcher knows its newest process. Raises Unreachable."""
    with database.reading(engine) as connection:
        launched = connection.execute(select(drivers).where(drivers.c.handle.is_not(None)))
        return {row.driver: row.handle for row in launched}


def settle(
    engine: Engine,
    driver: str,
    flows: list[str],
    dead: str | None = None,
    outlooks: dict[str, SourceHealth] | None = None,
) -> Settlement:
    """Decide about a driver's flows. Where it is to be started, that intent is committed before this returns.

    So a crash between intent and launch costs a timeout, and never a second driver. dead: the `handle` of a process
    that has ended. outlooks: of flows, what is known of their sources. Raises Unreachable.
    """
    with database.transaction(engine) as connection:
        driver_rows.lock(connection, driver)
        orders.lock(connection, flows)
        clock.forget_future(connection, driver, flows)
        seen_driver = _look_at_driver(connection, driver, dead)
        seen = _look(connection, flows, seen_driver, outlooks or {})
        decisions = {flow: decide(one) for flow, one in seen.items()}
        launch_since = None
        if not seen_driver.is_alive and any(decision.start for decision in decisions.values()):
            launch_since = database.now(connection)
            epoch = lease.epoch(connection, lease.of_driver(driver))
            intent = {"intended_at": launch_since, "handle": None, "epoch": epoch, "ends_at": None}
            connection.execute(update(drivers).where(drivers.c.driver == driver).values(intent))
        _intend(connection, decisions, is_new_driver=launch_since is not None)
        if not seen_driver.shutdown:
            _remember(connection, seen, decisions)
        known = acknowledgements.current(connection)
    acknowledged = {
        flow: str(known[flow])
        for flow, decision in decisions.items()
        if decision.is_sick and flow in known and known[flow].covers(decision)
    }
    kill = any(decision.kill for decision in decisions.values())
    return Settlement(decisions, acknowledged, launch_since, kill, seen_driver.held.get(lease.of_driver(driver)))


def show(engine: Engine, driver: str, flows: list[str]) -> dict[str, tuple[str, Decision]]:
    """By flow, what is wanted of it and what `settle` would decide now; nothing is started. Raises Unreachable."""
    launched = handles(engine).get(driver)
    dead = launched if launched and _has_ended_here(launched) else None
    with database.reading(engine) as connection:
        seen = _look(connection, flows, _look_at_driver(connection, driver, dead), {})
    return {flow: (one.wanted, decide(one)) for flow, one in seen.items()}


def record_launch(engine: Engine, driver: str, handle: str, launch_since: float) -> None:
    """Remember the process that the intent led to, unless that intent has been given up meanwhile."""
    with database.transaction(engine) as connection:
        same = (drivers.c.driver == driver) & (drivers.c.intended_at == launch_since)
        connection.execute(update(drivers).where(same).values(handle=handle))


def heartbeat(engine: Engine, name: str = NAME) -> None:
    """Tell the watchdog that this part is at work."""
    with database.transaction(engine) as connection:
        values = {"name": name, "at": database.now(connection)}
        statement = database.insert(connection, pulses).values(values)
        connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))


def pulse_seconds_ago(engine: Engine, name: str = NAME) -> float | None:
    """Since that part was last at work; None: it never was. Raises Unreachable."""
    with database.reading(engine) as connection:
        at = connection.execute(select(pulses.c.at).where(pulses.c.name == name)).scalar_one_or_none()
        return clock.seconds_ago(database.now(connection), at)


def _look_at_driver(connection: Connection, driver: str, dead: str | None) -> _Driver:
    found = connection.execute(select(drivers).where(drivers.c.driver == driver)).one_or_none()
    row = found or SimpleNamespace(**{**dict.fromkeys(drivers.c.keys()), **driver_rows.NEW, "driver": driver})
    held, now = lease.alive(connection), database.now(connection)
    epoch = lease.epoch(connection, lease.of_driver(driver))
    is_up, down = lease.of_driver(driver) in held, shutdown.current(connection)
    is_alive = is_up or _may_come_up(row, epoch, dead, now)
    restart_seconds_ago = clock.seconds_ago(now, row.ends_at) if driver_rows.owes_end(row, epoch) else None
    return _Driver(row, held, is_alive, is_up, restart_seconds_ago, orphaned_flows.flows(connection), down)


def _may_come_up(row: Any, epoch: int, dead: str | None, now: float) -> bool:
    if epoch > row.epoch:
        # It had its lease and let it expire: it is dead or asleep, and its successor ends it.
        return False
    if row.handle is not None:
        return bool(row.handle != dead)
    # Without a handle the supervisor died between intent and launch, and nobody can tell how far it came.
    ago = clock.seconds_ago(now, row.intended_at)
    return ago is not None and ago < START_SECONDS


def _has_ended_here(handle: str) -> bool:
    """Whether that process was one of this machine, and is no more; of others only their launcher can tell."""
    launched = Process.of_handle(handle)
    return launched is not None and launched.is_here and not launched.is_alive


def _look(
    connection: Connection, flows: list[str], driver: _Driver, outlooks: dict[str, SourceHealth]
) -> dict[str, ObservedFlow]:
    rows, now = orders.find(connection, flows), database.now(connection)
    begun = [row for flow, row in rows.items() if flow in driver.held and row.intended_at is not None]
    newest = max(begun, key=lambda row: row.intended_at, default=None)
    start = newest and Start(newest.flow, now - newest.intended_at, newest.sign_at is not None)
    wishes = connection.execute(select(desired).where(desired.c.flow.in_(flows)))
    wish_of = {wish.flow: wish for wish in wishes}
    window_of = windows.open_of(connection, {table_of(flow) for flow in flows})
    # What is known from outside goes before a window of the table.
    outlook_of = {flow: outlooks.get(flow, SourceHealth()) for flow in flows}
    waits = {flow: outlook.waits_for or window_of.get(table_of(flow)) for flow, outlook in outlook_of.items()}
    return {
        flow: _seen(rows[flow], wish_of.get(flow), driver, start, replace(outlook, waits_for=waits[flow]), now)
        for flow, outlook in outlook_of.items()
    }


def _seen(
    run: Any, wish: Row[Any] | None, driver: _Driver, start: Start | None, outlook: SourceHealth, now: float
) -> ObservedFlow:
    return ObservedFlow(
        wanted=wish.state if wish else "running",
        wanted_why=wish.reason if wish else "",
        is_held=run.flow in driver.held,
        is_driver_alive=driver.is_alive,
        is_driver_up=driver.is_up,
        newest_start=start,
        intended_seconds_ago=clock.seconds_ago(now, run.intended_at),
        attempts=run.attempts,
        failure=Failure(run.failure, run.error or "", run.needs_person) if run.failure else None,
        sign_seconds_ago=clock.seconds_ago(now, run.sign_at),
        waits_for=outlook.waits_for,
        backlog=outlook.backlog,
        expires=outlook.expires,
        rejects=outlook.rejects,
        not_fresh=outlook.not_fresh,
        restart_seconds_ago=driver.restart_seconds_ago,
        abandoned=driver.abandoned.get(run.flow),
        is_platform_down=driver.shutdown is not None,
        ended_with_platform=driver.shutdown is not None and driver.row.driver in driver.shutdown.stopped,
    )


def _intend(connection: Connection, decisions: Mapping[str, Decision], is_new_driver: bool) -> None:
    # A new driver tries them all, those that wait for their next start too.
    states = {State.BACKING_OFF} if is_new_driver else set()
    starting = [flow for flow, decision in decisions.items() if decision.start or decision.state in states]
    if starting:
        values = {**orders.AFRESH, "intended_at": database.now(connection), "attempts": runs.c.attempts + 1}
        connection.execute(update(runs).where(runs.c.flow.in_(starting)).values(values))


def _remember(connection: Connection, seen: Mapping[str, ObservedFlow], decisions: Mapping[str, Decision]) -> None:
    lasting = {flow for flow, decision in decisions.items() if _lasts(seen[flow], decision)}
    if retried := [flow for flow in lasting if seen[flow].attempts]:
        connection.execute(update(runs).where(runs.c.flow.in_(retried)).values(attempts=0))
    sick = {flow: (one.state, one.reason, one.error) for flow, one in decisions.items() if one.is_sick}
    stopped = {flow for flow, decision in decisions.items() if decision.state is State.STOPPED}
    incidents.settle(connection, sick, (lasting | stopped) - sick.keys())


def _lasts(seen: ObservedFlow, decision: Decision) -> bool:
    """Whether it has been well for so long that earlier failures count no more."""
    works = decision.state in {State.HEALTHY, State.WAITING, *OF_RUNNING_FLOWS}
    return works and seen.intended_seconds_ago is not None and seen.intended_seconds_ago > HEALTHY_SECONDS
