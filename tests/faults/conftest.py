"""A topic with its flows, a driver in this process, and a person who gives orders."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import select

from include import catalog
from include.catalog import Catalog
from include.control import commands
from include.control.commands import Command
from include.control.jobs import windows
from include.control.lease_renewer import LeaseRenewer
from include.control.process import Holder
from include.control.store import database
from include.control.store.schema import losses
from include.engine.jobs import window
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.settings import settings
from include.spec import Table
from tests.streaming.conftest import append, name, run_once, stored  # noqa: F401
from tests.support.flows import Chain, Driver
from tests.support.topic import Topic


@pytest.fixture
def topic(broker: str) -> Topic:
    return Topic(broker)


@pytest.fixture
def chain(name: str, topic: Topic) -> Chain:  # noqa: F811
    return Chain(name, topic)


@pytest.fixture
def engine():
    return database.connect(settings().control_url)


@pytest.fixture
def ask(engine) -> Callable[..., str]:
    """What the on-call engineer asks for: `ask(Action.STOP, table)`."""
    return lambda action, table: commands.execute(engine, Command(action, (table.flow,), "test", "a fault test"))[0]


@pytest.fixture
def lost(engine) -> Callable[[Table], list[tuple]]:
    """What was accepted as lost: partition, first offset, offset after the last, generation."""

    def of(table: Table) -> list[tuple]:
        columns = (losses.c.partition, losses.c.first, losses.c.after, losses.c.generation)
        with database.transaction(engine) as connection:
            found = connection.execute(select(*columns).where(losses.c.flow == table.flow).order_by(losses.c.partition))
            return [tuple(row) for row in found]

    return of


@pytest.fixture
def driver(spark, name, monkeypatch) -> Callable[..., Iterator[Driver]]:  # noqa: F811
    """Hosts tables until the end of the block: `with driver(table) as running:`."""

    @contextmanager
    def host(*tables: Table, is_supervised: bool = True) -> Iterator[Driver]:
        made = Driver(spark, name, tables, is_supervised)
        monkeypatch.setattr(catalog, "reload", lambda: Catalog(made.tables))
        made.start()
        try:
            yield made
        finally:
            made.end()

    return host


@pytest.fixture
def maintain(spark, engine) -> Callable[..., windows.Window]:
    """Opens a window of a table in this process and does its work, as `jobs/maintain.py` does; returns how it went."""

    def work(table: Table, *others: Table) -> windows.Window:
        tables = Catalog({one.name: one for one in (table, *others)})
        number = windows.plan(engine, table.name, "a test", "a test", is_worth_it=True)
        keeper = LeaseRenewer(engine, Holder.here(f"maintain {table.name}", jvm_pid()), 60, lambda reason: os.abort())
        keeper.take(window.leases(table))
        keeper.start()
        try:
            host = Host(spark, engine, keeper, "maintain")
            window.Window(engine, keeper, host, spark, table, tables, number).run(lambda reason: os.abort())
        finally:
            keeper.stop()
        found = windows.find(engine, number)
        assert found
        return found

    return work
