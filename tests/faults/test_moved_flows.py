"""A flow moves from one running driver to another and back, while rows arrive.

tests/faults/platforms/test_moves.py does it with two processes, and measures the pause.
"""

from contextlib import ExitStack
from dataclasses import replace

from include import catalog
from include.catalog import Catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.leases import lease
from include.control.store import database
from include.spec import Table
from tests.support.flows import Driver, wait_for_rows
from tests.support.waiting import wait_until


def move(engine, table: Table, to: str) -> None:
    commands.execute(engine, Command(Action.MOVE, (table.flow,), "ann", "a test", to=to))


def driver_of(engine, table: Table) -> str:
    with database.reading(engine) as connection:
        holder = lease.alive(connection).get(table.flow)
    return holder.driver if holder else ""


def test_a_flow_that_is_moved_to_another_driver_and_back_loses_and_doubles_no_row(
    chain, topic, spark, name, engine, monkeypatch
):
    home, other = name, f"{name}-other"
    bronze, silver = (replace(table, interval_seconds=0.2, driver=home) for table in (chain.bronze, chain.silver))
    latest = replace(chain.latest, interval_seconds=0.2, driver=other)
    tables = Catalog({table.name: table for table in (bronze, silver, latest)})
    monkeypatch.setattr(catalog, "load", lambda: tables)
    monkeypatch.setattr(catalog, "reload", lambda: tables)
    topic.create().send(1, "x")
    first, second = Driver(spark, home, (bronze, silver), True), Driver(spark, other, (latest,), True)
    with ExitStack() as at_the_end:
        # After the first one, which stops the flow that moves.
        at_the_end.callback(lambda: second.thread.ident and second.end())
        first.start()
        at_the_end.callback(first.end)
        wait_for_rows(silver, 1)
        move(engine, silver, other)
        topic.send(2)
        wait_for_rows(silver, 2)
        # The other driver is not up yet.
        assert driver_of(engine, silver) == home
        second.start()
        for number, place in enumerate((other, home), start=3):
            move(engine, silver, place)
            topic.send(number, "x")
            wait_until(lambda place=place: driver_of(engine, silver) == place, 60)
            topic.send(number, "x")
            wait_for_rows(silver, 2 * number - 2)
            assert driver_of(engine, silver) == place
    assert first.error is None
    assert second.error is None
    chain.assert_bronze_holds(topic.messages())
    chain.assert_silver_holds(topic.messages())
