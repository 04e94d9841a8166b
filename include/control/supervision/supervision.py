"""The supervisor's work on one driver: it observes each flow, decides, and stores the decision."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, update

from include.control import first_loads
from include.control.flows import incidents, orders
from include.control.flows.alarms import AlarmKind
from include.control.flows.decide import HEALTHY_SECONDS, RUNNING, START_SECONDS, Decision, State, decide, driver_cause
from include.control.flows.incidents import Finding
from include.control.flows.observed_flow import Failure, ObservedFlow, Start
from include.control.jobs import store, windows
from include.control.leases import lease
from include.control.leases.process import Holder, Process
from include.control.store import clock, database
from include.control.store.job_id import JobId
from include.control.store.job_schema import jobs
from include.control.store.schema import desired, drivers, pulses, runs
from include.control.supervision import shutdown
from include.control.supervision.shutdown import Shutdown
from include.spec import table_of


def _holding_jobs(connection: Connection) -> tuple[dict[str, str], dict[str, Failure]]:
    """By flow, the job that keeps it stopped: its name where it lives or may be tried again, and a failure for a person
    where it died.
    """
    alive: dict[str, str] = {}
    dead: dict[str, Failure] = {}
    for job in reversed(store.of_all_kinds(connection, jobs.c.ended_at.is_(None), jobs.c.stopped.is_not(None))):
        for flow in job.stopped:
            if job.is_held or store.may_be_tried_again(connection, job):
                alive[flow] = str(job.id)
            else:
                dead[flow] = Failure(
                    *(f"stopped by {job.id} of {job.table}, which died", f"{job.kind.upper()}_UNFINISHED", True),
                    cause=AlarmKind.JOB_FAILED.target(str(JobId(job.kind, job.root))),
                )
    return alive, dead


SUPERVISOR = "supervise"


@dataclass(frozen=True)
class SourceHealth:
    """The health of a flow's source and rows, in words. waits_for: the part of the source that is missing. backlog: how
    the flow falls behind. expires: the records that are about to be deleted unread. rejects: why its rows do not reach
    the table. not_fresh: how the table breaks its freshness promise. late_by: the cause of that, if it is above it.
    """

    waits_for: str | None = None
    backlog: str | None = None
    expires: str | None = None
    rejects: str | None = None
    not_fresh: str | None = None
    late_by: str = ""


@dataclass(frozen=True)
class Settlement:
    """decisions: by flow. acknowledged: by unhealthy flow, who has acknowledged its alarm and until when. launch_since:
    start the driver, by the intent of this time. kill: end the driver by force. holder: the driver's processes, if it
    holds its lease.
    """

    decisions: dict[str, Decision]
    acknowledged: dict[str, str]
    launch_since: float | None
    kill: bool
    holder: Holder | None


@dataclass(frozen=True)
class _Driver:
    """is_alive: it is alive or may still come up. is_up: it holds its lease. restart_seconds_ago: since the restart
    that it has yet to follow was requested. jobs: by flow, the live job that keeps it stopped. abandoned: the same for
    dead ones. shutdown: set if the platform is down.
    """

    row: Any
    held: dict[str, Holder]
    is_alive: bool
    is_up: bool
    restart_seconds_ago: float | None
    jobs: dict[str, str]
    abandoned: dict[str, Failure]
    shutdown: Shutdown | None


def handles(engine: Engine) -> dict[str, str]:
    """By driver, the launcher's handle of its newest process. Raises Unreachable."""
    with database.reading(engine) as connection:
        launched = connection.execute(select(drivers).where(drivers.c.handle.is_not(None)))
        return {row.driver: row.handle for row in launched}


def settle(
    engine: Engine,
    driver: str,
    flows: list[str],
    dead_handle: str | None = None,
    health: dict[str, SourceHealth] | None = None,
) -> Settlement:
    """Decide about a driver's flows. If the driver is to start, that intent is committed before this returns.

    So a crash between intent and launch costs a timeout, and never starts a second driver. dead_handle: the handle of a
    process that has ended. health: by flow, the health of its source. Raises Unreachable.
    """
    with database.transaction(engine) as connection:
        orders.lock_driver(connection, driver)
        orders.lock(connection, flows)
        clock.clamp_future_times(connection, driver, flows)
        observed_driver = _observe_driver(connection, driver, dead_handle)
        observed = _observe(connection, flows, observed_driver, health or {})
        decisions = _name_stuck_driver(driver, {name: decide(flow) for name, flow in observed.items()})
        launch_since = None
        # A flow that has moved to this driver runs in the other one until this one is up.
        has_work = any(decision.start or observed[flow].is_awaited for flow, decision in decisions.items())
        if not observed_driver.is_alive and has_work:
            launch_since = database.now(connection)
            epoch = lease.epoch(connection, lease.driver_lease(driver))
            intent = {"intended_at": launch_since, "handle": None, "epoch": epoch, "ends_at": None}
            connection.execute(update(drivers).where(drivers.c.driver == driver).values(intent))
        _store_intent(connection, decisions, is_new_driver=launch_since is not None)
        if not observed_driver.shutdown:
            _store_states(connection, observed, decisions)
        acknowledgement_of = incidents.valid_acknowledgements(connection)
    acknowledged = {
        flow: str(acknowledgement_of[flow])
        for flow, decision in decisions.items()
        if decision.is_unhealthy and flow in acknowledgement_of and acknowledgement_of[flow].covers(decision)
    }
    kill = any(decision.kill for decision in decisions.values())
    return Settlement(decisions, acknowledged, launch_since, kill, observed_driver.held.get(lease.driver_lease(driver)))


def preview(engine: Engine, driver: str, flows: list[str]) -> dict[str, tuple[str, Decision]]:
    """By flow, the state wanted of it and what `settle` would decide now. Nothing is started. Raises Unreachable."""
    handle = handles(engine).get(driver)
    dead_handle = handle if handle and has_ended_here(handle) else None
    with database.reading(engine) as connection:
        observed = _observe(connection, flows, _observe_driver(connection, driver, dead_handle), {})
    return {name: (flow.wanted, decide(flow)) for name, flow in observed.items()}


def record_launch(engine: Engine, driver: str, handle: str, launch_since: float, log: str | None = None) -> None:
    """Store the handle of the launched process, unless the intent was replaced meanwhile. Raises Unreachable.

    log: where its output is, in words.
    """
    with database.transaction(engine) as connection:
        is_intent = (drivers.c.driver == driver) & (drivers.c.intended_at == launch_since)
        connection.execute(update(drivers).where(is_intent).values(handle=handle, log=log))


def heartbeat(engine: Engine, name: str = SUPERVISOR) -> None:
    """Record that this process is at work, for the watchdog. Raises Unreachable."""
    with database.transaction(engine) as connection:
        values = {"name": name, "at": database.now(connection)}
        statement = database.insert(connection, pulses).values(values)
        connection.execute(statement.on_conflict_do_update(index_elements=["name"], set_=values))


def _observe_driver(connection: Connection, driver: str, dead_handle: str | None) -> _Driver:
    stored = connection.execute(select(drivers).where(drivers.c.driver == driver)).one_or_none()
    row = stored or SimpleNamespace(**{**dict.fromkeys(drivers.c.keys()), **orders.NEW_DRIVER, "driver": driver})
    holders, now_seconds = lease.alive(connection), database.now(connection)
    epoch = lease.epoch(connection, lease.driver_lease(driver))
    is_up, shutdown_ = lease.driver_lease(driver) in holders, shutdown.current(connection)
    is_alive = is_up or _may_come_up(row, epoch, dead_handle, now_seconds)
    restart_seconds_ago = clock.seconds_ago(now_seconds, row.ends_at) if orders.is_restart_due(row, epoch) else None
    return _Driver(row, holders, is_alive, is_up, restart_seconds_ago, *_holding_jobs(connection), shutdown_)


def _may_come_up(row: Any, epoch: int, dead_handle: str | None, now_seconds: float) -> bool:
    if epoch > row.epoch:
        # Its lease has expired: it is dead or suspended, and its successor kills it.
        return False
    if row.handle is not None:
        return bool(row.handle != dead_handle)
    # Without a handle, the supervisor died between intent and launch, and it is unknown whether it launched the driver.
    intended_seconds_ago = clock.seconds_ago(now_seconds, row.intended_at)
    return intended_seconds_ago is not None and intended_seconds_ago < START_SECONDS


def has_ended_here(handle: str) -> bool:
    """Whether the process ran on this machine and has ended. Processes elsewhere are known to their launcher only."""
    process = Process.of_handle(handle)
    return process is not None and process.is_here and not process.is_alive


def _observe(
    connection: Connection, flows: list[str], driver: _Driver, health: dict[str, SourceHealth]
) -> dict[str, ObservedFlow]:
    run_of, now = orders.find(connection, flows), database.now(connection)
    begun_runs = [run for flow, run in run_of.items() if flow in driver.held and run.intended_at is not None]
    newest = max(begun_runs, key=lambda run: run.intended_at, default=None)
    start = newest and Start(newest.flow, now - newest.intended_at, newest.sign_at is not None)
    wanted_rows = connection.execute(select(desired).where(desired.c.flow.in_(flows)))
    wanted_of = {wanted.flow: wanted for wanted in wanted_rows}
    window_of = windows.open_windows(connection, {table_of(flow) for flow in flows})
    loads = first_loads.waiting(connection, flows)
    # A missing source is reported before a window of the table, and that before what its first batch waits for.
    health_of = {flow: health.get(flow, SourceHealth()) for flow in flows}
    waits_for = {
        flow: source.waits_for or window_of.get(table_of(flow)) or loads.get(flow) for flow, source in health_of.items()
    }
    return {
        flow: _to_observed(
            run_of[flow], wanted_of.get(flow), driver, start, replace(source, waits_for=waits_for[flow]), now
        )
        for flow, source in health_of.items()
    }


def _to_observed(
    run: Any, wanted: Row[Any] | None, driver: _Driver, start: Start | None, health: SourceHealth, now_seconds: float
) -> ObservedFlow:
    return ObservedFlow(
        driver=driver.row.driver,
        wanted=wanted.state if wanted else "running",
        wanted_why=wanted.reason if wanted else "",
        is_held=run.flow in driver.held,
        runs_in=_other_driver(driver, run.flow),
        is_driver_alive=driver.is_alive,
        is_driver_up=driver.is_up,
        newest_start=start,
        intended_seconds_ago=clock.seconds_ago(now_seconds, run.intended_at),
        attempts=run.attempts,
        failure=Failure(run.failure, run.error or "", run.needs_person) if run.failure else None,
        sign_seconds_ago=clock.seconds_ago(now_seconds, run.sign_at),
        waits_for=health.waits_for,
        backlog=health.backlog,
        expires=health.expires,
        rejects=health.rejects,
        not_fresh=health.not_fresh,
        late_by=health.late_by,
        restart_seconds_ago=driver.restart_seconds_ago,
        abandoned=driver.abandoned.get(run.flow),
        job=driver.jobs.get(run.flow),
        is_platform_down=driver.shutdown is not None,
        ended_with_platform=driver.shutdown is not None and driver.row.driver in driver.shutdown.stopped,
    )


def _other_driver(driver: _Driver, flow: str) -> str:
    """The supervised driver that runs the flow although it belongs to this one; empty if none does."""
    holder = driver.held.get(flow)
    is_other = holder is not None and holder.driver != driver.row.driver
    # A job, or a driver that was started by hand, holds no lease of a driver.
    return holder.driver if holder and is_other and lease.driver_lease(holder.driver) in driver.held else ""


def _name_stuck_driver(driver: str, decisions: dict[str, Decision]) -> dict[str, Decision]:
    """If no flow that should run does, and several hang, their driver is to blame."""
    stuck = [flow for flow, decision in decisions.items() if decision.state is State.STUCK]
    runs_elsewhere = any(decision.state in RUNNING for decision in decisions.values())
    if len(stuck) < 2 or runs_elsewhere:
        return decisions
    return decisions | {flow: replace(decisions[flow], cause=driver_cause(driver)) for flow in stuck}


def _store_intent(connection: Connection, decisions: Mapping[str, Decision], is_new_driver: bool) -> None:
    # A new driver also tries the flows that are backing off.
    states = {State.BACKING_OFF} if is_new_driver else set()
    starting = [flow for flow, decision in decisions.items() if decision.start or decision.state in states]
    if starting:
        values = {**orders.CLEARED_RUN, "intended_at": database.now(connection), "attempts": runs.c.attempts + 1}
        connection.execute(update(runs).where(runs.c.flow.in_(starting)).values(values))


def _store_states(
    connection: Connection, observed: Mapping[str, ObservedFlow], decisions: Mapping[str, Decision]
) -> None:
    lasting = {flow for flow, decision in decisions.items() if _is_healthy_long(observed[flow], decision)}
    if retried := [flow for flow in lasting if observed[flow].attempts]:
        connection.execute(update(runs).where(runs.c.flow.in_(retried)).values(attempts=0))
    unhealthy = {
        flow: Finding(decision.state, decision.reason, decision.error, decision.cause)
        for flow, decision in decisions.items()
        if decision.is_unhealthy
    }
    stopped = {flow for flow, decision in decisions.items() if decision.state is State.STOPPED}
    incidents.settle(connection, unhealthy, (lasting | stopped) - unhealthy.keys())


def _is_healthy_long(flow: ObservedFlow, decision: Decision) -> bool:
    """Whether the flow has been healthy for so long that earlier failures no longer count."""
    return (
        decision.state in RUNNING
        and flow.intended_seconds_ago is not None
        and flow.intended_seconds_ago > HEALTHY_SECONDS
    )
