"""What the first batch of a flow waits for, for handmade logs and checkpoints, without Spark."""

import os
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import Engine

from include.catalog import Catalog
from include.checkpoints import landing_folder
from include.checkpoints.landing_folder import PlannedFile
from include.control import commands, first_loads, schedule
from include.control.commands import Action, Command
from include.control.first_loads import Awaited
from include.control.flows import orders
from include.control.flows.decide import State
from include.control.flows.observed_flow import Failure
from include.control.leases import lease
from include.control.store import database
from include.control.supervision import supervision
from include.errors import Unreachable
from include.flows import delta_source, kafka_source
from include.monitoring import first_load, status
from include.monitoring.first_load import FirstLoad
from include.rules import references
from include.settings import settings
from include.spec import Append, Delta, Files, Flow, Kafka, Lookup, Replace, Table, Upsert
from tests.support import lake
from tests.support.lake import checkpoint, delta_offset

ARRIVED = Flow(name="bronze.shops", comment="", source=Files("shops", "csv"), schema="shop STRING")
SHOPS = Flow(name="silver.shops", comment="", source=Delta("bronze.shops"), write=Upsert(("shop",)))
LOOKUP = Lookup("silver.shops", on="shop", columns=("city",))
SALES = Flow(name="silver.sales", comment="", source=Delta("bronze.sales"), lookups=(LOOKUP,))
TABLES = Catalog({table.name: table for table in (ARRIVED, SHOPS, SALES)})


@pytest.fixture
def engine(home) -> Engine:
    return database.connect(f"sqlite:///{home / 'control.db'}")


@pytest.fixture
def folder(tmp_path, own_settings, home) -> Callable[[str, float], None]:
    """`folder("a.csv", 5)` puts a file into the landing folder, as of 5 s ago."""
    own_settings(
        SLUICE_HOME=home,
        SLUICE_LANDING=tmp_path / "landing",
        SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}",
    )

    def put(name: str, age_seconds: float) -> None:
        path = tmp_path / "landing" / "shops" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("shop\n1\n")
        os.utime(path, times=(time.time() - age_seconds,) * 2)

    return put


def load(engine: Engine, table: Table = SALES, tables: Catalog = TABLES, life: str = "x/1") -> FirstLoad:
    """The first load as a start of the flow sees it."""
    return FirstLoad(engine, tables, table, table.flow, life)


def read_files(*names: str) -> None:
    """Makes the flow of the folder have read these files."""
    directory = checkpoint(ARRIVED.flow, {"logOffset": 0})
    folder = settings().folder("shops")
    log = directory / "sources" / "0"
    if log.is_dir():
        (log / "0").unlink()
        log.rmdir()
    landing_folder.seed_source_log(directory, [PlannedFile(f"file://{folder}/{name}", 1, 0) for name in names])


def waiting(engine: Engine) -> str | None:
    with database.reading(engine) as connection:
        return first_loads.waiting(connection, [SALES.flow]).get(SALES.flow)


def test_it_waits_for_what_the_source_held_at_its_first_start_in_the_order_of_the_graph(engine, folder):
    folder("a.csv", 500)
    folder("b.csv", 400)
    for table in (ARRIVED, SHOPS):
        lake.rows(table.name, time.time())
    assert load(engine).pending() == [ARRIVED.flow, SHOPS.flow]
    folder("c.csv", 5)
    read_files("a.csv")
    lake.rows(ARRIVED.name, time.time(), 1)
    checkpoint(SHOPS.flow, delta_offset(2))
    assert load(engine).pending() == [ARRIVED.flow, SHOPS.flow]
    read_files("a.csv", "b.csv")
    lake.rows(ARRIVED.name, time.time(), 1)
    assert load(engine).pending() == [SHOPS.flow]
    # Rows of the newer file, which nobody waits for.
    lake.rows(ARRIVED.name, time.time(), 1)
    checkpoint(SHOPS.flow, delta_offset(2, 0))
    assert load(engine).pending() == [SHOPS.flow]
    assert not load(engine).is_over()
    checkpoint(SHOPS.flow, delta_offset(2, 0), delta_offset(3))
    assert load(engine).pending() == []
    assert load(engine).is_over()


def test_what_is_loaded_is_loaded_for_good_until_the_table_begins_another_life(engine, folder):
    folder("a.csv", 500)
    read_files("a.csv")
    for table in (ARRIVED, SHOPS):
        lake.rows(table.name, time.time(), 1)
    checkpoint(SHOPS.flow, delta_offset(1))
    assert load(engine).pending() == []
    # A full refresh puts other rows and positions in their place.
    lake.rows(ARRIVED.name, time.time(), 1)
    checkpoint(SHOPS.flow, delta_offset(0, 0, is_first=True), generation=2)
    folder("b.csv", 100)
    assert load(engine).pending() == []
    assert load(engine, life="x/2").pending() == [ARRIVED.flow, SHOPS.flow]
    assert load(engine).pending() == [ARRIVED.flow, SHOPS.flow]


def test_sources_that_hold_nothing_are_not_waited_for_and_a_table_that_is_not_stored_is(engine, folder):
    assert load(engine).pending() == [SHOPS.name]
    lake.rows(SHOPS.name, time.time())
    assert load(engine).pending() == []
    assert waiting(engine) is None


def test_an_empty_table_is_not_waited_for_where_its_reader_never_gets_a_batch(engine, folder):
    for table in (ARRIVED, SHOPS):
        lake.rows(table.name, time.time())
    assert load(engine).pending() == []


def test_a_flow_waits_for_lookups_and_references_unless_they_say_otherwise():
    assert first_load.tables_of(SALES) == [SHOPS.name]
    without = Lookup("silver.shops", on="shop", columns=("city",), wait=False)
    rules = (references("shop", "silver.shops", "shop"), references("shop", "silver.other", "shop", wait=False))
    table = Flow(name="silver.sales", comment="", source=Delta("bronze.sales"), lookups=(without,), expect=rules)
    assert first_load.tables_of(table) == [SHOPS.name]
    assert repr(without) == repr(LOOKUP), "a release that does not know it takes the definition for the same"


def test_what_computes_all_rows_of_its_sources_waits_for_them_unless_they_say_otherwise():
    source, pinned = Delta("silver.sales"), Delta("silver.old", version_as_of=3)
    assert repr(Delta("silver.sales", wait=False)) == repr(source), "an older release takes it for the same"
    sums = Flow(name="gold.sums", comment="", source=source, write=Upsert(("shop",)))
    view = Table(
        name="gold.view", comment="", source={"a": source, "b": Delta("silver.shops"), "c": pinned}, write=Replace()
    )
    assert first_load.tables_of(sums) == ["silver.sales"]
    assert first_load.tables_of(view) == ["silver.sales", "silver.shops"]
    for table in (sums, replace(view, source=source)):
        assert first_load.tables_of(replace(table, source=Delta("silver.sales", wait=False))) == []
    assert first_load.tables_of(replace(sums, write=Upsert(("shop",), in_windows=True))) == []
    assert first_load.tables_of(replace(sums, write=Upsert(("shop",), sequence_by="at"))) == []


def test_the_first_refresh_of_a_view_waits_and_says_so_and_a_stored_view_never_waits(engine, folder):
    view = Flow(name="gold.view", comment="", source=Delta(SHOPS.name), write=Replace())
    tables = Catalog({table.name: table for table in (ARRIVED, SHOPS, view)})

    def state() -> tuple[str | None, str]:
        [found] = [found for found in status.statuses(tables, 0) if found.flow == view.flow]
        return found.state, found.reason

    folder("a.csv", 5)
    for table in (ARRIVED, SHOPS):
        lake.rows(table.name, time.time())
    sentence = "its first refresh waits until bronze.shops, silver.shops has read once what its source held at"
    assert sentence in first_load.awaited_by_view(engine, tables, view)
    assert state()[0] == State.WAITING
    assert sentence in state()[1]
    unbound = replace(view, source=Delta(SHOPS.name, wait=False))
    assert first_load.awaited_by_view(engine, tables, unbound) == ""
    read_files("a.csv")
    lake.rows(ARRIVED.name, time.time(), 1)
    checkpoint(SHOPS.flow, delta_offset(2))
    assert first_load.awaited_by_view(engine, tables, view) == ""
    assert state()[0] == status.VIEW
    lake.rows(view.name, time.time(), 1)
    folder("b.csv", 5)
    assert first_load.awaited_by_view(engine, Catalog(tables.tables), view) == ""


def test_a_dimension_that_reads_kafka_is_loaded_up_to_the_ends_that_its_topic_had(
    engine, own_settings, home, silent_port
):
    own_settings(SLUICE_HOME=home, SLUICE_KAFKA=f"127.0.0.1:{silent_port}")
    shops = Flow(name=SHOPS.name, comment="", source=Kafka("shops"), driver="other", write=Append(unique=("key",)))
    tables = Catalog({table.name: table for table in (shops, SALES)})
    lake.rows(shops.name, time.time())
    # Nobody knows how much a topic holds that does not answer.
    assert load(engine, tables=tables).pending() == [shops.flow]
    first_loads.record(engine, SALES.flow, "x/1", [Awaited(shops.flow, {"shops": {"0": 5, "1": 2}})])
    for offset, pending in (({"0": 5}, [shops.flow]), ({"0": 5, "1": 1}, [shops.flow]), ({"0": 9, "1": 2}, [])):
        checkpoint(shops.flow, {"shops": offset})
        assert load(engine, tables=tables).pending() == pending


def test_a_dimension_with_a_schedule_is_waited_for_and_said_to_rest(engine, folder):
    shops = replace(SHOPS, schedule="0 3 * * *", driver="other")
    tables = Catalog({table.name: table for table in (ARRIVED, shops, SALES)})
    lake.rows(ARRIVED.name, time.time(), 1)
    lake.rows(shops.name, time.time())
    assert load(engine, tables=tables).pending() == [shops.flow]
    schedule.follow(engine, {shops.flow: shops.schedule}, lambda _, at: at + 60)
    assert "until silver.shops (at rest until its schedule) has read once" in (waiting(engine) or "")
    checkpoint(shops.flow, delta_offset(1))
    assert load(engine, tables=tables).pending() == []


def test_tables_above_are_waited_for_too_each_once_and_never_the_table_itself(engine, folder):
    itself = (references("shop", "silver.sales", "shop"),)
    again = Flow(name="silver.again", comment="", source=Delta("silver.shops"), write=Append(unique=("shop",)))
    both = (LOOKUP, Lookup("silver.again", on="shop", columns=("name",), prefix="x_"))
    table = Flow(name="silver.sales", comment="", source=Delta("bronze.shops"), lookups=both, expect=itself)
    tables = Catalog({item.name: item for item in (ARRIVED, SHOPS, again, table)})
    folder("a.csv", 5)
    for name in (ARRIVED.name, SHOPS.name, again.name):
        lake.rows(name, time.time())
    assert load(engine, table, tables).pending() == [ARRIVED.flow, SHOPS.flow, again.flow]


def test_the_state_says_for_what_it_waits_and_what_keeps_that_from_reading(engine, folder, holder):
    folder("a.csv", 5)
    for table in (ARRIVED, SHOPS):
        lake.rows(table.name, time.time())
    flows = [table.flow for table in TABLES.tables.values()]
    lease.acquire(engine, [SALES.flow], holder("main"), 60)
    orders.begin(engine, flows, by_hand=False)
    orders.report_progress(engine, [SALES.flow], {})
    load(engine).pending()
    decision = supervision.preview(engine, "main", flows)[SALES.flow][1]
    assert decision.state is State.WAITING
    assert "its first batch waits until bronze.shops, silver.shops has read once" in decision.reason
    commands.execute(engine, Command(Action.STOP, (ARRIVED.flow,), "ada", "a test"))
    orders.fail(engine, [SHOPS.flow], Failure("column 'x' is gone", "SCHEMA_CHANGED", True), 0)
    assert "until bronze.shops (stopped), silver.shops (failed: SCHEMA_CHANGED) has read" in (waiting(engine) or "")
    with pytest.raises(Unreachable, match="silver.sales: its first batch waits until bronze.shops, silver.shops"):
        load(engine).require()
    first_loads.forget(engine, SALES.flow)
    assert waiting(engine) is None


@pytest.mark.parametrize(
    ("offset", "version", "expected"),
    [
        (delta_offset(3), 2, True),
        (delta_offset(3), 3, False),
        (delta_offset(3, 7), 2, True),
        (delta_offset(3, 7), 3, False),
        # Within the first snapshot of the table, which is of version 5.
        (delta_offset(5, 7, is_first=True), 2, False),
        (delta_offset(6), 5, True),
    ],
)
def test_a_position_has_passed_a_version_if_it_lies_behind_all_of_its_files(offset, version: int, expected: bool):
    assert delta_source.has_passed(offset, version) is expected


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ({"a": {"0": 5, "1": 9}, "b": {"0": 1}}, True),
        ({"a": {"0": 6, "1": 9, "2": 0}, "b": {"0": 2}}, True),
        ({"a": {"0": 4, "1": 9}, "b": {"0": 1}}, False),
        ({"a": {"0": 5}, "b": {"0": 1}}, False),
        ({"a": {"0": 5, "1": 9}}, False),
    ],
)
def test_a_position_covers_the_ends_of_topics_if_it_covers_each_partition(offset, expected: bool):
    assert kafka_source.has_read_records(offset, {"a": {"0": 5, "1": 9}, "b": {"0": 1}}) is expected
