"""A flow begins a batch when its source commits, and does not wait for its interval."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest
from deltalake import DeltaTable
from sqlalchemy import select

from include import catalog
from include.catalog import Catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.store import database
from include.control.store.schema import runs
from include.engine.stream import flow, pacer, trigger_clock
from include.lake import locations
from include.settings import settings
from include.spec import Delta, Flow, Table
from tests.support.flows import Driver, rows_of, wait_for_rows
from tests.support.waiting import wait_until

# Longer than any test lasts.
NEVER = 3600.0


def table(name: str, source: str, **values) -> Table:
    return Flow(name=name, comment="numbers", source=Delta(source), schema="number INT", **values)


@pytest.fixture
def driver(spark, name: str, monkeypatch: pytest.MonkeyPatch):
    @contextmanager
    def host(*tables: Table):
        running_driver = Driver(spark, name, tables, is_supervised=True)
        monkeypatch.setattr(catalog, "reload", lambda: Catalog(running_driver.tables))
        running_driver.start()
        try:
            yield running_driver
        finally:
            running_driver.end()

    return host


def wait_until_idle(driver: Driver, table: Table) -> None:
    """Wait until the flow is between two triggers of the driver's clock."""

    def is_idle() -> bool:
        trigger = driver.host._pacer._triggers.get(table.flow)
        return bool(trigger and trigger.clock and not trigger.query.status["isTriggerActive"])

    wait_until(is_idle, 120)


@pytest.fixture
def raw(name: str, append):
    """Appends numbers to the table that bronze reads, as another job does. Returns the name of the table."""

    def commit(*numbers: int, target: str = f"bronze.{name}_raw") -> str:
        append(target, [{"number": number} for number in numbers], "number INT")
        return target

    return commit


@pytest.fixture
def looks_at_unchanged_logs_are_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacer, "UNCHANGED_SECONDS", NEVER)


def begin(driver: Driver, table: Table) -> None:
    """Begin the next batch of the flow without waiting for its interval."""
    driver.host._pacer._triggers[table.flow].clock.fire()


def newest_version(table: Table) -> int:
    return DeltaTable(str(locations.table_path(table.name))).version()


def run_command(action: Action, table: Table) -> None:
    commands.execute(database.connect(settings().control_url), Command(action, (table.flow,), "test", "a test"))


def test_each_hop_begins_when_the_one_above_has_committed(name, driver, raw):
    bronze = table(f"bronze.{name}", raw(1), interval_seconds=NEVER)
    silver = table(f"silver.{name}", bronze.name, interval_seconds=NEVER)
    gold = table(f"gold.{name}", silver.name, interval_seconds=NEVER)
    with driver(bronze, silver, gold) as running_driver:
        wait_for_rows(gold, 1)
        for flow in (bronze, silver, gold):
            wait_until_idle(running_driver, flow)
        raw(2)
        begin(running_driver, bronze)
        wait_for_rows(gold, 2)


def test_a_flow_that_waits_for_its_interval_shows_that_it_is_alive(name, driver, raw, monkeypatch):
    monkeypatch.setattr(flow, "SILENT_SECONDS", 0)
    bronze = table(f"bronze.{name}", raw(1), interval_seconds=NEVER)
    with driver(bronze) as running_driver:
        wait_for_rows(bronze, 1)
        wait_until_idle(running_driver, bronze)

        def sign_at() -> float:
            with database.reading(running_driver.engine) as connection:
                return connection.execute(select(runs.c.sign_at).where(runs.c.flow == bronze.flow)).scalar_one() or 0.0

        def has_new_sign(last_sign_at: float) -> bool:
            return sign_at() > last_sign_at

        for _ in range(3):
            wait_until(partial(has_new_sign, sign_at()), 15)


def test_a_flow_with_a_longer_interval_than_its_source_gathers_several_commits(name, driver, raw):
    bronze = table(f"bronze.{name}", raw(1), interval_seconds=0.1)
    silver = table(f"silver.{name}", bronze.name, interval_seconds=NEVER)
    with driver(bronze, silver) as running_driver:
        wait_for_rows(silver, 1)
        version_before = newest_version(silver)
        for number in (2, 3, 4):
            raw(number)
            wait_for_rows(bronze, number)
        wait_until_idle(running_driver, silver)
        assert newest_version(silver) == version_before
        begin(running_driver, silver)
        wait_for_rows(silver, 4)
        assert newest_version(silver) == version_before + 1


@pytest.mark.usefixtures("looks_at_unchanged_logs_are_far_off")
def test_what_somebody_else_commits_to_its_source_is_read_at_its_interval(name, driver, raw):
    bronze = table(f"bronze.{name}", raw(1), interval_seconds=NEVER)
    silver = table(f"silver.{name}", bronze.name, interval_seconds=0.5)
    with driver(bronze, silver) as running_driver:
        wait_for_rows(silver, 1)
        wait_until_idle(running_driver, silver)
        raw(2, target=bronze.name)
        wait_for_rows(silver, 2)


@pytest.mark.usefixtures("looks_at_unchanged_logs_are_far_off")
def test_what_a_batch_leaves_unread_is_read_without_another_commit(name, driver, raw):
    for number in range(4):
        raw(number)
    source = Delta(raw(4), max_files=1)
    silver = replace(table(f"silver.{name}", source.table, interval_seconds=0.2), source=source)
    with driver(silver):
        wait_for_rows(silver, 5)
    assert sorted(row["number"] for row in rows_of(silver.name)) == list(range(5))


def test_a_flow_that_waits_for_its_source_is_restarted_and_drained(name, driver, raw):
    bronze = table(f"bronze.{name}", raw(1), interval_seconds=NEVER)
    silver = table(f"silver.{name}", bronze.name, interval_seconds=NEVER)
    with driver(bronze, silver) as running_driver:
        wait_for_rows(silver, 1)
        wait_until_idle(running_driver, silver)
        query = running_driver.query(silver)
        run_command(Action.RESTART, silver)
        wait_until(lambda: running_driver.query(silver) not in (None, query), 120)
        wait_until_idle(running_driver, silver)
        raw(2, target=bronze.name)
        run_command(Action.DRAIN, silver)
        wait_for_rows(silver, 2)
        wait_until(lambda: running_driver.query(silver) is None, 120)
        # Bronze continues, and its commits wake only flows that run.
        raw(3)
        begin(running_driver, bronze)
        wait_for_rows(bronze, 3)


def test_where_spark_is_not_as_expected_flows_go_on_at_their_intervals_and_it_is_told_once(
    name, driver, raw, monkeypatch, caplog
):
    monkeypatch.setattr(trigger_clock, "FIELD", "watch")
    bronze = table(f"bronze.{name}", raw(1), interval_seconds=0.5)
    silver = table(f"silver.{name}", bronze.name, interval_seconds=0.5)
    with driver(bronze, silver):
        wait_for_rows(silver, 1)
        raw(2)
        wait_for_rows(silver, 2)
    assert caplog.text.count("flows do not begin when their sources commit") == 1
