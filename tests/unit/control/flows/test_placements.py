"""A flow that a person has moved belongs to its new driver, until it is moved back."""

import pytest
from sqlalchemy import Engine

from include import catalog
from include.catalog import Catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders, placements
from include.control.flows.observed_flow import Failure
from include.errors import UsageError
from include.spec import Kafka, Table

A, B = "bronze.a", "bronze.b"
TABLES = Catalog({name: Table(name=name, comment="", source=Kafka("t")) for name in (A, B)})


@pytest.fixture(autouse=True)
def two_flows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "load", lambda: TABLES)


def move(engine: Engine, flow: str, to: str) -> str:
    [answer] = commands.execute(engine, Command(Action.MOVE, (flow,), "ann", "a test", to=to))
    return answer.removeprefix(f"{flow}: ")


def flows_by_driver(engine: Engine) -> dict[str, list[str]]:
    return {
        driver: [flow.flow for flow in flows] for driver, flows in placements.place(engine, TABLES).drivers().items()
    }


def test_a_moved_flow_belongs_to_its_new_driver_until_it_is_moved_back(engine: Engine):
    assert flows_by_driver(engine) == {"main": [A, B]}
    ends_in_main = "ends in driver 'main' after the current batch, and goes on in driver 'heavy'"
    assert move(engine, B, "heavy") == f"{ends_in_main}, which is a new one"
    assert flows_by_driver(engine) == {"main": [A], "heavy": [B]}
    assert orders.read(engine, "main", [A]).placements == {B: "heavy"}
    assert move(engine, B, "heavy") == "nothing done, it belongs to driver 'heavy'"
    assert move(engine, A, "heavy") == ends_in_main
    move(engine, A, "main")
    move(engine, B, "main")
    # Nothing is stored of a flow at home, which follows the file of its table.
    assert orders.read(engine, "main", [A]).placements == {}


def test_a_flow_that_has_failed_is_tried_at_once_where_it_moves_to(engine: Engine):
    orders.fail(engine, [A], Failure("out of memory", "OutOfMemoryError", needs_person=True))
    move(engine, A, "heavy")
    assert orders.read(engine, "heavy", [A]).failed == frozenset()


def test_a_name_that_no_driver_can_have_is_refused(engine: Engine):
    with pytest.raises(UsageError, match="'a/b' is no name of a driver: use letters"):
        move(engine, A, "a/b")
    assert flows_by_driver(engine) == {"main": [A, B]}
