"""What a driver reads from the control database, and what it reports."""

import pytest
import sqlalchemy
from sqlalchemy import Engine, select

from include.control.flows import orders
from include.control.flows.observed_flow import Failure
from include.control.flows.orders import Order, Orders
from include.control.store import database
from include.control.store.job_schema import metadata
from include.control.store.schema import desired, drivers, runs

A, B, C = FLOWS = ["bronze.a", "gold.c", "silver.b"]
CURABLE = Failure("no broker answers", "Unreachable", needs_person=False)
INCURABLE = Failure("column 'bpm' is gone", "DeclarationError", needs_person=True)


def run(engine: Engine, flow: str = A):
    with database.transaction(engine) as connection:
        return connection.execute(select(runs).where(runs.c.flow == flow)).one()


def want(engine: Engine, flow: str, state: str) -> None:
    with database.transaction(engine) as connection:
        connection.execute(desired.insert().values(flow=flow, state=state, reason="a test"))


def failed(engine: Engine) -> set[str]:
    return set(orders.read(engine, "main", FLOWS).failed)


def test_a_flow_and_a_driver_that_nobody_spoke_of_are_to_run(engine):
    default_orders = Orders(dict.fromkeys(FLOWS, Order("running", 0)), frozenset(), 0)
    assert orders.read(engine, "main", FLOWS) == default_orders


def test_a_driver_reads_what_is_wanted_of_each_of_its_flows_and_of_itself(engine):
    want(engine, A, "stopped")
    want(engine, B, "draining")
    with database.transaction(engine) as connection:
        connection.execute(runs.insert().values(flow=B, turn=3, attempts=0, needs_person=False))
        for name, epoch in {"main": 2, "other": 7}.items():
            connection.execute(drivers.insert().values(driver=name, ends_epoch=epoch, epoch=0))
    orders.fail(engine, [C, "another driver's"], CURABLE)
    order_by_flow = {A: Order("stopped", 0), B: Order("draining", 3), C: Order("running", 0)}
    assert orders.read(engine, "main", FLOWS) == Orders(order_by_flow, frozenset({C}), 2)


def test_what_failed_stays_down_with_its_reason(engine):
    orders.fail(engine, [A, B], INCURABLE)
    orders.fail(engine, [B], CURABLE)
    assert failed(engine) == {A, B}
    assert (run(engine).failure, run(engine).error, run(engine).needs_person) == (
        "column 'bpm' is gone",
        "DeclarationError",
        True,
    )
    assert (run(engine, B).failure, run(engine, B).needs_person) == ("no broker answers", False)


def test_what_a_payload_brought_into_a_sentence_is_stored_readable_and_ends_nobody(engine):
    # A cast error quotes the value, and a file name is not always valid UTF-8.
    orders.fail(engine, [A], Failure("the value 'a\x00b' of caf\udce9.csv, of 25 °C", "CAST\x00", needs_person=False))
    row = run(engine)
    assert (row.failure, row.error) == ("the value 'a\\x00b' of caf\\udce9.csv, of 25 °C", "CAST\\x00")
    assert failed(engine) == {A}


def test_every_column_of_text_takes_any_text():
    columns = [column for table in metadata.tables.values() for column in table.columns]
    assert [str(column) for column in columns if isinstance(column.type, sqlalchemy.String)] == []


@pytest.mark.parametrize(("by_hand", "left"), [(False, {B}), (True, set())])
def test_a_new_driver_tries_what_it_can_cure_and_only_a_person_tries_the_rest(engine, by_hand: bool, left: set[str]):
    orders.fail(engine, [A], CURABLE)
    orders.fail(engine, [B], INCURABLE)
    orders.begin(engine, FLOWS, by_hand)
    assert failed(engine) == left


def test_a_new_driver_leaves_the_flows_of_others_alone(engine):
    orders.fail(engine, [A, B], CURABLE)
    orders.begin(engine, [A], by_hand=True)
    assert failed(engine) == {B}


def test_a_sign_of_life_tells_when_and_a_new_driver_has_yet_to_give_one(engine):
    orders.begin(engine, FLOWS, by_hand=False)
    assert run(engine).sign_at is None
    orders.report_progress(engine, [A, B])
    sign_at = run(engine).sign_at
    with database.transaction(engine) as connection:
        assert 0 <= database.now(connection) - sign_at < 5
    assert run(engine, C).sign_at is None
    orders.begin(engine, FLOWS, by_hand=False)
    assert run(engine).sign_at is None


@pytest.mark.parametrize(
    ("before", "after"), [("draining", "stopped"), ("running", "running"), ("stopped", "stopped"), (None, "running")]
)
def test_only_a_flow_that_is_still_to_drain_stops_at_the_end_of_its_source(engine, before: str | None, after: str):
    if before:
        want(engine, A, before)
    want(engine, B, "draining")
    orders.end_drain(engine, A)
    order_by_flow = orders.read(engine, "main", FLOWS).of
    assert (order_by_flow[A].state, order_by_flow[B].state) == (after, "draining")
