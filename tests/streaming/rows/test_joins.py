"""Joins: of a flow with a stored table, at a version that its commit records, and of events with later events."""

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from include.catalog import Catalog
from include.delta.delta_log import DeltaLog
from include.engine.fast_path import lookup_tables
from include.engine.jobs import replay
from include.engine.rows import lookup
from include.errors import Unreachable, UsageError
from include.flows.batches import BatchHistory
from include.lake import locations
from include.ledger import verify
from include.rules import not_null
from include.spec import Append, Bucket, Delta, Flow, Lookup, Table, Upsert
from tests.support.backfills import Backfills
from tests.support.commits import kill_next_batch, switch_fast_path
from tests.support.flows import rows_of

SALES = "sale INT, product INT, second INT"
PRODUCTS = "product INT, title STRING, price INT, second INT"
HISTORY = f"{PRODUCTS}, valid_from INT, valid_to INT, is_current BOOLEAN"


both_paths = pytest.mark.parametrize("path", ["fast path", "spark"], indirect=True)


@pytest.fixture(autouse=True)
def path(request, monkeypatch) -> str:
    """The path by which batches are written, if they are small."""
    chosen = getattr(request, "param", "fast path")
    switch_fast_path(monkeypatch, chosen == "fast path")
    return chosen


def sales(name: str, products_: Lookup, **fields) -> Table:
    arguments = {
        "name": f"silver.{name}",
        "comment": "sales with what the product was",
        "source": Delta(f"bronze.{name}"),
        "schema": "sale INT, product INT, title STRING, cents INT",
        "lookups": (products_,),
        "transform": "SELECT sale, product, title, price * 100 AS cents FROM source",
    }
    return Flow(**{**arguments, **fields})


def products(name: str, **fields) -> Lookup:
    return Lookup(f"silver.{name}_products", on="product", columns=("title", "price"), **fields)


def lookups_of(table: Table) -> list[dict[str, int] | None]:
    """The versions that the batches of a table have read, oldest first."""
    return [batch.lookups for batch in reversed(list(BatchHistory(table).batches()))]


def sold(name: str) -> list[tuple]:
    return sorted(((row["sale"], row["title"], row["cents"]) for row in rows_of(f"silver.{name}")), key=str)


@both_paths
def test_a_row_gets_the_columns_of_its_partner_and_nulls_without_one(name, append, run_once, path):
    table = sales(name, products(name))
    append(f"silver.{name}_products", [product(1, "ink", 5), product(2, "pen", 3), product(None, "?", 9)], PRODUCTS)
    append(f"bronze.{name}", [sale(1, 1), sale(2, 7), sale(3, None), sale(4, 2)], SALES)
    run_once(table)
    assert sold(name) == [(1, "ink", 500), (2, None, None), (3, None, None), (4, "pen", 300)]
    assert lookups_of(table) == [{f"silver.{name}_products": 0}]
    metadata = next(DeltaLog(locations.table_path(table.name)).commits()).metadata
    assert metadata["fast_path"] == (path == "fast path")
    assert metadata["no_partner"] == {f"silver.{name}_products": 2}


def test_a_later_batch_looks_into_the_rows_of_its_time_and_keeps_what_earlier_ones_have_found(name, append, run_once):
    table = sales(name, products(name))
    append(f"silver.{name}_products", [product(1, "ink", 5)], PRODUCTS)
    append(f"bronze.{name}", [sale(1, 1), sale(2, 2)], SALES)
    run_once(table)
    append(f"silver.{name}_products", [product(2, "pen", 3)], PRODUCTS)
    append(f"bronze.{name}", [sale(3, 2)], SALES)
    run_once(table)
    assert sold(name) == [(1, "ink", 500), (2, None, None), (3, "pen", 300)]
    assert lookups_of(table) == [{f"silver.{name}_products": 0}, {f"silver.{name}_products": 1}]


def test_a_backfill_looks_again(name, append, run_once, spark):
    table = sales(name, products(name), expect=(not_null("title", name="has a product"),))
    append(f"silver.{name}_products", [product(1, "ink", 5)], PRODUCTS)
    append(f"bronze.{name}", [sale(1, 1), sale(2, 2)], SALES)
    run_once(table)
    append(f"silver.{name}_products", [product(2, "pen", 3)], PRODUCTS)
    Backfills(spark, (table,)).run(table, as_a_whole=True)
    assert sold(name) == [(1, "ink", 500), (2, "pen", 300)]
    assert rows_of(table.quarantine) == []


@both_paths
def test_a_batch_that_is_tried_again_with_newer_rows_leaves_nothing_of_its_first_try(
    name, append, run_once, path, monkeypatch
):
    table = sales(name, products(name), expect=(not_null("title", name="has a product"),))
    append(f"silver.{name}_products", [product(1, "ink", 5)], PRODUCTS)
    append(f"bronze.{name}", [sale(1, 1), sale(2, 2), sale(3, 7)], SALES)
    with kill_next_batch(monkeypatch, table.flow, is_written=False):
        run_once(table)
    assert len(rows_of(table.quarantine)) == 2
    append(f"silver.{name}_products", [product(2, "pen", 3)], PRODUCTS)
    run_once(table)
    assert sold(name) == [(1, "ink", 500), (2, "pen", 300)]
    assert [row["sale"] for row in rows_of(table.quarantine)] == [3]
    assert lookups_of(table) == [{f"silver.{name}_products": 1}]
    assert verify.verify(table).batches == 1


def test_a_version_is_used_until_it_is_to_be_refreshed(name, append):
    long = lookup.Versions(sales(name, products(name, refresh_seconds=1_000)))
    short = lookup.Versions(sales(name, products(name, refresh_seconds=1e-9)))
    for version, expected in enumerate([{"long": 0, "short": 0}, {"long": 0, "short": 1}]):
        append(f"silver.{name}_products", [product(version, "ink", 5)], PRODUCTS)
        versions = {"long": long.current(), "short": short.current()}
        assert {kind: used[f"silver.{name}_products"] for kind, used in versions.items()} == expected


def test_a_quarantine_of_rows_that_look_up_is_not_put_back_but_backfilled(name, append, run_once):
    table = sales(name, products(name), expect=(not_null("title", name="has a product"),))
    append(f"silver.{name}_products", [product(1, "ink", 5)], PRODUCTS)
    append(f"bronze.{name}", [sale(2, 2)], SALES)
    run_once(table)
    with pytest.raises(UsageError, match=f"looks into silver.{name}_products, .* backfill the range of these rows"):
        replay.run(table, Catalog({table.name: table}), [], dry_run=True)


def test_a_row_without_a_partner_is_quarantined_if_a_rule_says_so(name, append, run_once):
    table = sales(name, products(name), expect=(not_null("title", name="has a product"),))
    append(f"silver.{name}_products", [product(1, "ink", 5)], PRODUCTS)
    append(f"bronze.{name}", [sale(1, 1), sale(2, 2)], SALES)
    run_once(table)
    assert sold(name) == [(1, "ink", 500)]
    assert [(row["sale"], row["_rules"]) for row in rows_of(table.quarantine)] == [(2, ["has a product"])]


@both_paths
def test_a_history_gives_the_row_that_was_valid_at_the_time_of_the_event(name, append, run_once):
    table = sales(name, products(name, at="second"))
    periods = [(1, "ink", 5, 10, 20), (1, "blue ink", 6, 20, None), (2, "pen", 3, 15, 18)]
    append(f"silver.{name}_products", [period(*values) for values in periods], HISTORY)
    moments = enumerate([9, 10, 19, 20, 99, None])
    append(f"bronze.{name}", [sale(number, 1, second) for number, second in moments], SALES)
    append(f"bronze.{name}", [sale(10, 2, 17), sale(11, 2, 18)], SALES)
    run_once(table)
    titles = [None, "ink", "ink", "blue ink", "blue ink", None]
    assert sorted((number, title) for number, title, _ in sold(name)) == [*enumerate(titles), (10, "pen"), (11, None)]


def test_a_history_gives_its_current_row_if_the_lookup_says_so(name, append, run_once):
    table = sales(name, products(name, current=True))
    append(f"silver.{name}_products", [period(1, "ink", 5, 10, 20), period(1, "blue ink", 6, 20, None)], HISTORY)
    append(f"bronze.{name}", [sale(1, 1, 12)], SALES)
    run_once(table)
    assert sold(name) == [(1, "blue ink", 600)]


def test_changes_of_keys_and_large_tables_are_looked_up_too(name, append, run_once, monkeypatch):
    monkeypatch.setattr(lookup_tables, "MOST_BYTES", 1)
    table = sales(
        name,
        Lookup(f"silver.{name}_products", on={"product": "product"}, columns=("title",), prefix="product_"),
        schema="sale INT, product_title STRING, second INT",
        transform=None,
        write=Upsert(("sale",), sequence_by="second"),
    )
    append(f"silver.{name}_products", [product(1, "ink", 5), product(2, "pen", 3)], PRODUCTS)
    append(f"bronze.{name}", [sale(1, 1, 10), sale(1, 2, 11), sale(2, 1, 10)], SALES)
    run_once(table)
    assert sorted((row["sale"], row["product_title"]) for row in rows_of(table.name)) == [(1, "pen"), (2, "ink")]


def test_a_flow_waits_for_the_table_that_it_looks_into(name, append, run_once):
    append(f"bronze.{name}", [sale(1, 1)], SALES)
    with pytest.raises(Exception, match=f"looks into silver.{name}_products, which is not stored yet") as error:
        run_once(sales(name, products(name)))
    assert isinstance(error.value, Unreachable)


def test_rows_are_unique_whatever_they_look_up(name, append, run_once):
    table = sales(name, products(name), write=Append(unique=("sale",)))
    append(f"silver.{name}_products", [product(1, "ink", 5)], PRODUCTS)
    append(f"bronze.{name}", [sale(1, 1), sale(1, 2)], SALES)
    run_once(table)
    assert len(sold(name)) == 1


def sale(number: int, product_: int | None, second: int | None = 0) -> dict:
    return {"sale": number, "product": product_, "second": second}


def product(number: int | None, title: str, price: int) -> dict:
    return {"product": number, "title": title, "price": price, "second": 0}


def period(number: int, title: str, price: int, begin: int, end: int | None) -> dict:
    values = {"valid_from": begin, "valid_to": end, "is_current": end is None}
    return {**product(number, title, price), **values}


EVENTS = "id INT, kind STRING, user INT, document STRING, time TIMESTAMP"
# A view ends in a sale if its user buys within half an hour, and is a bounce if the user does nothing in that time.
OUTCOMES = """
    WITH views AS (SELECT * FROM source WHERE kind = 'view'),
        outcomes AS (
            SELECT view.id, view.hour, view.document,
                CASE WHEN bool_or(other.kind = 'sale') THEN 'sale'
                    WHEN count(other.id) = 0 THEN 'bounce' ELSE 'visit' END AS outcome
            FROM views AS view LEFT JOIN source AS other
                ON other.user = view.user AND other.id != view.id AND other.time >= view.time
                AND other.time < view.time + INTERVAL 30 MINUTES
            GROUP BY ALL)
    SELECT hour, document, outcome, count(*) AS views FROM outcomes GROUP BY ALL
"""


def outcomes_by_hour(name: str) -> Table:
    return Flow(
        name=f"gold.{name}",
        comment="what became of the views of a document",
        source=Delta(f"silver.{name}", max_files=1),
        schema="hour TIMESTAMP, document STRING, outcome STRING, views BIGINT",
        transform=OUTCOMES,
        write=Upsert(
            keys=("hour", "document", "outcome"), recompute=Bucket("hour", of="time", unit="hour"), reach_minutes=30
        ),
    )


def expected_outcomes(events: list[dict]) -> Counter:
    counts = Counter()
    for view in (event for event in events if event["kind"] == "view"):
        end = view["time"] + timedelta(minutes=30)
        others = [
            event["kind"]
            for event in events
            if event["user"] == view["user"] and event is not view and view["time"] <= event["time"] < end
        ]
        outcome = "sale" if "sale" in others else "visit" if others else "bounce"
        counts[view["time"].replace(minute=0, second=0), view["document"], outcome] += 1
    return counts


@both_paths
def test_a_join_across_buckets_is_right_whatever_the_order_in_which_its_events_arrive(name, append, run_once, path):
    chance = random.Random(7)
    events = [
        {
            **event(number, chance.choice(["view", "view", "sale"]), chance.randrange(360)),
            "user": chance.randrange(4),
            "document": chance.choice("ab"),
        }
        for number in range(60)
    ]
    chance.shuffle(events)
    table, parts = outcomes_by_hour(name), [events[:40], events[40:58], events[58:]]
    for number in range(len(parts)):
        append(f"silver.{name}", parts[number], EVENTS)
        run_once(table)
        arrived = [event for part in parts[: number + 1] for event in part]
        stored = {(row["hour"], row["document"], row["outcome"]): row["views"] for row in rows_of(table.name)}
        assert stored == expected_outcomes(arrived)
    newest = next(DeltaLog(locations.table_path(table.name)).commits())
    assert newest.metadata["fast_path"] == (path == "fast path")


def test_a_backfill_of_one_bucket_looks_into_its_neighbours(name, append, run_once, spark):
    table = outcomes_by_hour(name)
    events = [event(1, "view", 58), event(2, "sale", 62), event(3, "view", 119), event(4, "view", 121)]
    append(f"silver.{name}", events, EVENTS)
    run_once(table)
    before = rows_of(table.name)
    hour = int(events[0]["time"].timestamp()) // 3600 * 3600
    Backfills(spark, (table,)).run(table, hour + 3600, hour + 7200)
    assert [row["outcome"] for row in sorted(before, key=lambda row: row["hour"])] == ["sale", "visit", "bounce"]
    assert sorted(rows_of(table.name), key=str) == sorted(before, key=str)


def event(number: int, kind: str, minute: int) -> dict:
    time = datetime(2026, 3, 1, 20, tzinfo=UTC) + timedelta(minutes=minute)
    return {"id": number, "kind": kind, "user": 1, "document": "a", "time": time}
