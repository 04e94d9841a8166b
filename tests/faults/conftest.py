"""Fixtures: a topic with its flows, a driver in this process, and the actions of the on-call engineer."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import select

from include import catalog
from include.catalog import Catalog
from include.control import commands
from include.control.commands import Command
from include.control.jobs import store, windows
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import losses
from include.engine.jobs import refresh as engine_refresh
from include.engine.jobs.maintenance_window import Window
from include.engine.jobs.refresh import RefreshJob, RefreshRun
from include.engine.jobs.worker import Worker, leases
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
    """`ask(Action.STOP, table)` executes an action as the on-call engineer does, and returns the answer."""
    return lambda action, table: commands.execute(engine, Command(action, (table.flow,), "test", "a fault test"))[0]


@pytest.fixture
def lost(engine) -> Callable[[Table], list[tuple]]:
    """`lost(table)` returns the accepted losses: partition, first offset, offset after the last, generation."""

    def lost_ranges(table: Table) -> list[tuple]:
        columns = (losses.c.partition, losses.c.first, losses.c.after, losses.c.generation)
        with database.transaction(engine) as connection:
            rows = connection.execute(select(*columns).where(losses.c.flow == table.flow).order_by(losses.c.partition))
            return [tuple(row) for row in rows]

    return lost_ranges


@pytest.fixture
def driver(spark, name, monkeypatch) -> Callable[..., Iterator[Driver]]:  # noqa: F811
    """`with driver(table) as running_driver:` runs the flows of tables in a driver during the block."""

    @contextmanager
    def host(*tables: Table, is_supervised: bool = True) -> Iterator[Driver]:
        new_driver = Driver(spark, name, tables, is_supervised)
        monkeypatch.setattr(catalog, "reload", lambda: Catalog(new_driver.tables))
        new_driver.start()
        try:
            yield new_driver
        finally:
            new_driver.end()

    return host


@pytest.fixture
def maintain(spark, engine) -> Callable[..., windows.Window]:
    """`maintain(table)` runs a maintenance window in this process, as `jobs/maintain.py` does, and returns it."""

    def run_window(table: Table, *other_tables: Table) -> windows.Window:
        tables = Catalog({member.name: member for member in (table, *other_tables)})
        number = windows.plan(engine, table.name, "a test", "a test", is_worth_it=True)
        lease_renewer = LeaseRenewer(
            engine, Holder.here(f"maintain {table.name}", jvm_pid()), 60, lambda reason: os.abort()
        )
        lease_renewer.take(leases(table))
        lease_renewer.start()
        try:
            host = Host(spark, engine, lease_renewer, "maintain")
            Window(engine, lease_renewer, host, spark, table, tables, number).run(lambda reason: os.abort())
        finally:
            lease_renewer.stop()
        completed_window = store.get(engine, windows.Window, number)
        assert completed_window
        return completed_window

    return run_window


@pytest.fixture
def refresh(spark, engine) -> Callable[..., None]:
    """`refresh("monday", view)` refreshes views in this process, as a driver does that is asked for it."""

    def run(run_name: str, *selected_views: Table) -> None:
        lease_renewer = LeaseRenewer(
            engine, Holder.here(f"refresh {run_name}", jvm_pid()), 60, lambda reason: os.abort()
        )
        lease_renewer.start()
        try:
            tables = Catalog({view.name: view for view in selected_views})
            host = Host(spark, engine, lease_renewer, "refresh")
            worker = Worker(engine, lease_renewer, host, spark, tables, lambda reason: os.abort())
            run = RefreshRun.begin(run_name, list(selected_views))
            RefreshJob(engine, engine_refresh.begin(engine, run, selected_views[0].name)).work(worker)
        finally:
            lease_renewer.stop()

    return run
