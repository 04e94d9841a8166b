"""What a driver has to do with its flows, what it reports of them, and the restart that was requested of it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any

from sqlalchemy import Connection, Engine, Row, select, true, update

from include.control.flows import incidents, placements, queue
from include.control.flows.observed_flow import Failure
from include.control.store import database
from include.control.store.job_id import JobId
from include.control.store.schema import desired, driver_sizes, drivers, paces, runs

# The columns that a new run clears.
CLEARED_RUN: dict[str, Any] = {"failure": None, "error": None, "needs_person": False, "sign_at": None}
INITIAL_RUN = {"turn": 0, "attempts": 0, "needs_person": False}
NEW_DRIVER = {"ends_epoch": 0, "epoch": 0}


@dataclass(frozen=True)
class Order:
    """state: running, draining or stopped. turn: increases with every requested restart of the flow."""

    state: str = "running"
    turn: int = 0


@dataclass(frozen=True)
class Orders:
    """of: each flow's order. failed: flows that may not start until the supervisor allows it. ends_epoch: a driver with
    a lease of this epoch or an older one has to end. job: the one that the driver is to do next. executors: that the
    driver is to have; None: as many as Spark's settings say. placements: the drivers of all flows that were moved.
    """

    of: dict[str, Order]
    failed: frozenset[str]
    ends_epoch: int
    job: JobId | None = None
    executors: int | None = None
    placements: Mapping[str, str] = field(default_factory=dict)


def order(connection: Connection, flow: str) -> Order:
    """The order of one flow. A flow without stored rows is to run."""
    return _orders(connection, [flow])[flow]


def _orders(connection: Connection, flows: list[str]) -> dict[str, Order]:
    """The orders of several flows, in two queries."""
    states = select(desired.c.flow, desired.c.state).where(desired.c.flow.in_(flows))
    turns = select(runs.c.flow, runs.c.turn).where(runs.c.flow.in_(flows))
    state_of = {row.flow: row.state for row in connection.execute(states)}
    turn_of = {row.flow: row.turn for row in connection.execute(turns)}
    return {flow: Order(state_of.get(flow, "running"), turn_of.get(flow, 0)) for flow in flows}


def read(engine: Engine, driver: str, flows: list[str]) -> Orders:
    """Read everything a driver has to know in one short transaction. Raises Unreachable."""
    with database.reading(engine) as connection:
        failed = connection.execute(select(runs.c.flow).where(runs.c.flow.in_(flows), runs.c.failure.is_not(None)))
        ends_epoch = connection.execute(
            select(drivers.c.ends_epoch).where(drivers.c.driver == driver)
        ).scalar_one_or_none()
        executors = connection.execute(
            select(driver_sizes.c.size).where(driver_sizes.c.driver == driver)
        ).scalar_one_or_none()
        job = queue.oldest(connection, driver)
        return Orders(
            _orders(connection, flows),
            frozenset(failed.scalars()),
            ends_epoch or 0,
            job,
            executors,
            placements.read(connection),
        )


def begin(engine: Engine, flows: list[str], by_hand: bool) -> None:
    """Clear the failures of a new driver's flows, so that it tries them. Started by hand, it also tries flows whose
    failure needs a person. Raises Unreachable.
    """
    with database.transaction(engine) as connection:
        lock(connection, flows)
        curable = true() if by_hand else ~runs.c.needs_person
        values = {**CLEARED_RUN, "intended_at": database.now(connection)}
        connection.execute(update(runs).where(runs.c.flow.in_(flows), curable).values(values))


def lock(connection: Connection, flows: Iterable[str]) -> dict[str, Row[Any]]:
    """The rows of these flows, locked to the end of the transaction in a fixed order, which prevents deadlocks."""
    names = sorted(flows)
    if names:
        rows = [{"flow": name, **INITIAL_RUN} for name in names]
        connection.execute(database.insert(connection, runs).values(rows).on_conflict_do_nothing())
    locked = select(runs).where(runs.c.flow.in_(names)).order_by(runs.c.flow).with_for_update()
    return {row.flow: row for row in connection.execute(locked)}


def find(connection: Connection, flows: list[str]) -> dict[str, Any]:
    """The rows of these flows, without a lock; the initial row of a flow that has none."""
    rows = connection.execute(select(runs).where(runs.c.flow.in_(flows)))
    never_ran = {
        flow: SimpleNamespace(**{**dict.fromkeys(runs.c.keys()), **INITIAL_RUN, "flow": flow}) for flow in flows
    }
    return never_ran | {row.flow: row for row in rows}


def report_progress(engine: Engine, flows: list[str], intervals: Mapping[str, float] = MappingProxyType({})) -> None:
    """Report progress of these flows to the supervisor. Raises Unreachable.

    intervals: by flow, the seconds from one batch to the next while rows arrive.
    """
    with database.transaction(engine) as connection:
        lock(connection, flows)
        signs = {"sign_at": database.now(connection)}
        connection.execute(update(runs).where(runs.c.flow.in_(flows)).values(signs))
        if known_intervals := [
            {"flow": flow, "interval_seconds": intervals[flow]} for flow in flows if flow in intervals
        ]:
            statement = database.insert(connection, paces).values(known_intervals)
            values = {"interval_seconds": statement.excluded.interval_seconds}
            connection.execute(statement.on_conflict_do_update(index_elements=["flow"], set_=values))


def intervals(engine: Engine) -> dict[str, float]:
    """The last reported interval by flow, in seconds. Raises Unreachable."""
    with database.reading(engine) as connection:
        return {row.flow: row.interval_seconds for row in connection.execute(select(paces))}


def fail(engine: Engine, flows: list[str], failure: Failure, turn: int | None = None) -> None:
    """Store why these flows ended. They stay down until the supervisor starts them again. Raises Unreachable.

    turn: of the run that failed; a failure of an earlier run is ignored.
    """
    with database.transaction(engine) as connection:
        lock(connection, flows)
        is_current = runs.c.flow.in_(flows) & (true() if turn is None else runs.c.turn == turn)
        values = {"failure": failure.sentence, "error": failure.error, "needs_person": failure.needs_person}
        connection.execute(update(runs).where(is_current).values(values))


def end_drain(engine: Engine, flow: str) -> None:
    """Set a draining flow to stopped, after it has read its source to the end. Raises Unreachable."""
    with database.transaction(engine) as connection:
        is_draining = (desired.c.flow == flow) & (desired.c.state == "draining")
        connection.execute(update(desired).where(is_draining).values(state="stopped"))


def set_wanted(connection: Connection, flow: str, state: str, reason: str) -> None:
    """Set the state wanted of the flow. The caller has locked the flow's row."""
    values = {"flow": flow, "state": state, "reason": reason}
    statement = database.insert(connection, desired).values(values)
    connection.execute(statement.on_conflict_do_update(index_elements=["flow"], set_=values))


def clear_failure(connection: Connection, flow: str) -> None:
    """Clear the flow's failure, so that it starts at once and the next failure opens a new incident."""
    values = {**CLEARED_RUN, "attempts": 0, "intended_at": database.now(connection)}
    incidents.retry(connection, flow)
    connection.execute(update(runs).where(runs.c.flow == flow).values(values))


def restart(connection: Connection, flow: str) -> None:
    """Let the flow end its current run and begin another, whose failures are the only ones that count."""
    connection.execute(update(runs).where(runs.c.flow == flow).values(turn=runs.c.turn + 1))
    clear_failure(connection, flow)


def lock_driver(connection: Connection, driver: str) -> Row[Any]:
    """The driver's row, locked to the end of the transaction, so that two supervisors do not decide at once."""
    row = {"driver": driver, **NEW_DRIVER}
    connection.execute(database.insert(connection, drivers).values(row).on_conflict_do_nothing())
    return connection.execute(select(drivers).where(drivers.c.driver == driver).with_for_update()).one()


def is_restart_due(row: Any, epoch: int) -> bool:
    """Whether a restart of a driver was requested that neither it nor a launch has carried out yet. row: its own."""
    return row.ends_at is not None and bool(epoch <= row.ends_epoch)
