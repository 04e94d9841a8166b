"""All flows start at once, with full sources: whoever looks into another table waits until that is loaded."""

from dataclasses import replace

import pytest

from include import catalog
from include.catalog import Catalog
from include.control.commands import Action
from include.control.flows.decide import State
from include.control.supervision import supervision
from include.delta.table_logs import TableLogs
from include.engine.jobs import refresh as engine_refresh
from include.errors import Unreachable
from include.lake import locations
from include.monitoring import first_load, status
from include.spec import Delta, Flow, Lookup, Replace, Table, Upsert
from tests.support.commits import switch_fast_path
from tests.support.flows import has_rows, only_in_full_runs, rows_of
from tests.support.waiting import wait_until

SALES, SHOPS = "sale INT, shop INT", "shop INT, city STRING, at INT"


@pytest.fixture
def shops(name) -> Table:
    return Flow(
        name=f"silver.{name}_shops",
        comment="shops",
        source=Delta(f"bronze.{name}_shops"),
        schema=SHOPS,
        write=Upsert(("shop",), sequence_by="at"),
    )


@pytest.fixture
def sales(name, shops) -> Table:
    return Flow(
        name=f"silver.{name}",
        comment="sales with their cities",
        source=Delta(f"bronze.{name}"),
        schema="sale INT, shop INT, city STRING",
        lookups=(Lookup(shops.name, on="shop", columns=("city",), refresh_seconds=0),),
    )


@pytest.mark.parametrize("is_fast", [True, pytest.param(False, marks=only_in_full_runs)])
def test_no_row_of_a_first_load_lacks_its_partner_and_those_that_have_none_are_counted(
    name, shops, sales, append, driver, run_once, ask, refresh, caplog, monkeypatch, is_fast
):
    switch_fast_path(monkeypatch, is_fast)
    counted = "SELECT city, count(*) AS sales FROM source GROUP BY city"
    sums = Flow(
        name=f"gold.{name}",
        comment="sales of each city",
        source=Delta(sales.name),
        schema="city STRING, sales BIGINT",
        transform=counted,
        write=Upsert(("city",)),
    )
    view = replace(sums, name=f"gold.{name}_view", write=Replace())
    tables = Catalog({table.name: table for table in (shops, sales, sums, view)})
    monkeypatch.setattr(catalog, "load", lambda: tables)
    monkeypatch.setattr("include.engine.stream.flow.BY_HAND_SECONDS", 0)
    append(f"bronze.{name}_shops", [{"shop": shop, "city": f"city {shop}", "at": 1} for shop in range(9)], SHOPS)
    append(f"bronze.{name}", [{"sale": sale, "shop": sale % 10} for sale in range(100)], SALES)
    with pytest.raises(Unreachable, match=f"its first batch waits until {shops.flow} has read once"):
        run_once(sales)
    ask(Action.STOP, shops)
    with driver(shops, sales, sums) as running:

        def reason(flow: str = sales.flow) -> str:
            decision = supervision.preview(running.engine, name, [flow])[flow][1]
            return decision.reason if decision.state is State.WAITING else ""

        wait_until(lambda: f"{shops.flow} (stopped)" in reason(), 120)
        engine_refresh.run("early", [view], tables)
        waits = f"{view.name}: not refreshed: its first refresh waits until {shops.flow} (stopped), {sales.flow} has"
        assert waits in caplog.text
        assert not locations.is_stored(view.name)
        assert rows_of(sales.name) == []
        ask(Action.START, shops)
        wait_until(lambda: has_rows(sales), 120)
        wait_until(lambda: has_rows(sums), 120)
        wait_until(lambda: reason() == reason(sums.flow) == "", 60)
        assert first_load.awaited_by_view(running.engine, tables, view) == ""
    refresh("late", view)
    assert sum(row["sales"] for row in rows_of(sums.name)) == sum(row["sales"] for row in rows_of(view.name)) == 100
    cities = {row["sale"]: row["city"] for row in rows_of(sales.name)}
    assert cities == {sale: None if sale % 10 == 9 else f"city {sale % 10}" for sale in range(100)}
    assert status.no_partner(sales, TableLogs()) == {shops.name: 10}
    # Who has begun waits no more, whatever becomes of the table that it looks into.
    append(f"bronze.{name}", [{"sale": 100, "shop": 1}], SALES)
    append(f"bronze.{name}_shops", [{"shop": 1, "city": "moved", "at": 2}], SHOPS)
    run_once(replace(sales))
    assert len(rows_of(sales.name)) == 101


def test_on_a_new_platform_the_first_rows_wait_and_not_a_batch_without_rows(
    name, shops, sales, append, driver, run_once, ask, monkeypatch
):
    """`make up` comes before the first message, and the rows of the looked-up table may come more slowly."""
    tables = Catalog({table.name: table for table in (shops, sales)})
    monkeypatch.setattr(catalog, "load", lambda: tables)
    append(f"bronze.{name}_shops", [], SHOPS)
    append(f"bronze.{name}", [], SALES)
    run_once(shops)
    # Its batch is committed, and another driver begins where this one ends.
    run_once(sales)
    append(f"bronze.{name}_shops", [{"shop": shop, "city": f"city {shop}", "at": 1} for shop in range(9)], SHOPS)
    append(f"bronze.{name}", [{"sale": sale, "shop": sale % 9} for sale in range(90)], SALES)
    ask(Action.STOP, shops)
    with driver(shops, sales) as running:

        def is_waiting() -> bool:
            state = supervision.preview(running.engine, name, [sales.flow])[sales.flow][1].state
            return state is State.WAITING

        wait_until(is_waiting, 120)
        ask(Action.START, shops)
        wait_until(lambda: has_rows(sales), 120)
    assert {row["city"] for row in rows_of(sales.name)} == {f"city {shop}" for shop in range(9)}
    assert len(rows_of(sales.name)) == 90
