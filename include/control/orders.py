"""What a driver is to do with its flows, as it reads it, and what it reports of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace
from typing import Any

from sqlalchemy import Column, Connection, Engine, Row, Table, select, true, update

from include.control.observed_flow import Failure
from include.control.store import database
from include.control.store.job_schema import requests
from include.control.store.schema import desired, drivers, paces, runs, window_requests

# What a run that begins has nothing of.
AFRESH: dict[str, Any] = {"failure": None, "error": None, "needs_person": False, "sign_at": None}
NEVER_RAN = {"turn": 0, "attempts": 0, "needs_person": False}


@dataclass(frozen=True)
class Order:
    """state: running, draining or stopped. turn: one more whenever the flow is to be started anew."""

    state: str = "running"
    turn: int = 0


@dataclass(frozen=True)
class Orders:
    """of: each flow's order. failed: flows that may not be started before the supervisor says so.

    ends_epoch: a driver whose lease has this epoch or an older one is to end, so that another is started in its place.
    backfill, window: the one that it was asked for first.
    """

    of: dict[str, Order]
    failed: frozenset[str]
    ends_epoch: int
    backfill: int | None = None
    window: int | None = None


def order(connection: Connection, flow: str) -> Order:
    """What is wanted of one flow; a flow nobody spoke of is to run."""
    return _orders(connection, [flow])[flow]


def _orders(connection: Connection, flows: list[str]) -> dict[str, Order]:
    """Of many at the cost of one."""
    states = select(desired.c.flow, desired.c.state).where(desired.c.flow.in_(flows))
    turns = select(runs.c.flow, runs.c.turn).where(runs.c.flow.in_(flows))
    state_of = {row.flow: row.state for row in connection.execute(states)}
    turn_of = {row.flow: row.turn for row in connection.execute(turns)}
    return {flow: Order(state_of.get(flow, "running"), turn_of.get(flow, 0)) for flow in flows}


def read(engine: Engine, driver: str, flows: list[str]) -> Orders:
    """All a driver has to know, in one short transaction. Raises Unreachable."""
    with database.reading(engine) as connection:
        failed = connection.execute(select(runs.c.flow).where(runs.c.flow.in_(flows), runs.c.failure.is_not(None)))
        ends = connection.execute(select(drivers.c.ends_epoch).where(drivers.c.driver == driver)).scalar_one_or_none()
        backfill = _asked_first(connection, requests, requests.c.root, driver)
        window = _asked_first(connection, window_requests, window_requests.c.number, driver)
        return Orders(_orders(connection, flows), frozenset(failed.scalars()), ends or 0, backfill, window)


def _asked_first(connection: Connection, asked: Table, number: Column[int], driver: str) -> int | None:
    found = select(number).where(asked.c.driver == driver).order_by(asked.c.asked_at, number).limit(1)
    return connection.execute(found).scalar_one_or_none()


def begin(engine: Engine, flows: list[str], by_hand: bool) -> None:
    """A new driver tries each of its flows, except what only a person can cure; that is tried by hand only."""
    with database.transaction(engine) as connection:
        lock(connection, flows)
        curable = true() if by_hand else ~runs.c.needs_person
        values = {**AFRESH, "intended_at": database.now(connection)}
        connection.execute(update(runs).where(runs.c.flow.in_(flows), curable).values(values))


def lock(connection: Connection, flows: Iterable[str]) -> dict[str, Row[Any]]:
    """The rows of these flows, held to the end of the transaction; always in the same order, or two would wait for
    each other.
    """
    names = sorted(flows)
    if names:
        rows = [{"flow": name, **NEVER_RAN} for name in names]
        connection.execute(database.insert(connection, runs).values(rows).on_conflict_do_nothing())
    held = select(runs).where(runs.c.flow.in_(names)).order_by(runs.c.flow).with_for_update()
    return {found.flow: found for found in connection.execute(held)}


def find(connection: Connection, flows: list[str]) -> dict[str, Any]:
    """The rows of these flows as they are, held by nobody; of a flow that has none, that with which it begins."""
    rows = connection.execute(select(runs).where(runs.c.flow.in_(flows)))
    never_ran = {flow: SimpleNamespace(**{**dict.fromkeys(runs.c.keys()), **NEVER_RAN, "flow": flow}) for flow in flows}
    return never_ran | {row.flow: row for row in rows}


def show_signs(engine: Engine, flows: list[str], intervals: Mapping[str, float] = MappingProxyType({})) -> None:
    """Tell the supervisor that these flows live. Raises Unreachable.

    intervals: by flow, the seconds from one batch to the next while rows come.
    """
    with database.transaction(engine) as connection:
        lock(connection, flows)
        signs = {"sign_at": database.now(connection)}
        connection.execute(update(runs).where(runs.c.flow.in_(flows)).values(signs))
        if told := [{"flow": flow, "interval_seconds": intervals[flow]} for flow in flows if flow in intervals]:
            statement = database.insert(connection, paces).values(told)
            changed = {"interval_seconds": statement.excluded.interval_seconds}
            connection.execute(statement.on_conflict_do_update(index_elements=["flow"], set_=changed))


def intervals(engine: Engine) -> dict[str, float]:
    """By flow, what was last told. Raises Unreachable."""
    with database.reading(engine) as connection:
        return {row.flow: row.interval_seconds for row in connection.execute(select(paces))}


def fail(engine: Engine, flows: list[str], failure: Failure, turn: int | None = None) -> None:
    """Say why these flows ended; they stay down until the supervisor starts them again. Raises Unreachable.

    turn: of the run that failed; how one of an earlier turn ended counts no more.
    """
    with database.transaction(engine) as connection:
        lock(connection, flows)
        own = runs.c.flow.in_(flows) & (true() if turn is None else runs.c.turn == turn)
        values = {"failure": failure.sentence, "error": failure.error, "needs_person": failure.needs_person}
        connection.execute(update(runs).where(own).values(values))


def end_drain(engine: Engine, flow: str) -> None:
    """The flow has read its source to the end. Raises Unreachable."""
    with database.transaction(engine) as connection:
        is_draining = (desired.c.flow == flow) & (desired.c.state == "draining")
        connection.execute(update(desired).where(is_draining).values(state="stopped"))
