"""The tables of the shop are what plain Python makes of its database and of the page views, also after late rows."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from include import catalog
from include.engine.jobs import refresh
from include.examples import SHOP_TOPICS, database, purchases
from include.examples.events import Event
from include.examples.views import USERS, _long, _optional, _text, views
from include.lake import locations
from include.ledger import verify
from include.local import connector
from include.settings import settings
from include.spec import Delta, Flow, Kafka, Table
from tests.support import expected
from tests.support.backfills import Backfills
from tests.support.commits import kill_next_batch
from tests.support.connect import Connect
from tests.support.expected import changes as expected_changes
from tests.support.expected import views as expected_views
from tests.support.flows import FULL, only_in_full_runs, rows_of
from tests.support.postgresql import Server
from tests.support.topic import Topic

START = datetime(2026, 3, 1, 20, 30, tzinfo=UTC)
HALF_AN_HOUR = timedelta(minutes=30)
PURCHASES = ("bronze.purchases", "silver.purchases")
CUSTOMERS = ("bronze.customers", "silver.customers", "silver.customer_history")
CONVERSION = (*PURCHASES, "bronze.page_views", "silver.page_views", "silver.page_events", "gold.conversion_by_hour")


class Shop:
    """The shipped tables of the shop with random names, over a database and topics of their own.

    It remembers all purchases that were in `silver.purchases` at the end of a run, each with its user and time.
    """

    def __init__(self, server: Server, kafka_connect: Connect, name: str) -> None:
        self.name, self._connect = name, kafka_connect
        with server.connection() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        address = f"host=127.0.0.1 port={server.port} user=sluice dbname={name}"
        self.connection = psycopg.connect(address, autocommit=True)
        database.create_tables(self.connection)
        self.topics = {topic: Topic(settings().kafka).create(2) for topic in (*SHOP_TOPICS.values(), "page-views")}
        self.tables = {table: self._own(catalog.load().table(table)) for table in (*CONVERSION, *CUSTOMERS)}
        self.bought: dict[int, tuple[str, datetime]] = {}

    def _own(self, table: Table) -> Table:
        """The shipped table, which reads and writes what is of this shop."""

        def own(source: Kafka | Delta) -> Kafka | Delta:
            if isinstance(source, Kafka):
                return replace(source, topics=self.topics[source.names[0]].name)
            return replace(source, table=self._own_name(source.table))

        is_branched = isinstance(table.source, dict)
        source = {branch: own(part) for branch, part in table.source.items()} if is_branched else own(table.source)
        return replace(table, name=self._own_name(table.name), source=source)

    def _own_name(self, table: str) -> str:
        layer, name = table.split(".")
        return f"{layer}.{self.name}_{name}"

    def flows(self, *names: str) -> tuple[Flow, ...]:
        """The flows of these tables."""
        return tuple(flow for name in names for flow in self.tables[name].flows)

    def rows(self, table: str) -> list[dict[str, Any]]:
        return rows_of(self.tables[table].name)

    def change(self, *changes: purchases.Change) -> None:
        for change in changes:
            purchases.execute(self.connection, change)

    def send_changes(self) -> None:
        """Wait until the topics have all changes that were made so far."""
        if self.name not in self._connect.worker.connectors:
            topics = {f"public.{table}": self.topics[topic].name for table, topic in SHOP_TOPICS.items()}
            self._connect.add(self.name, connector.debezium(self.connection, topics, self.name))
        self._connect.wait_for_changes(self.connection, self.name)

    def view(self, *events: Event) -> None:
        self.topics["page-views"].send(*(event.value for event in events))

    def read(self, run_once, *names: str) -> None:
        """Read all that was sent into these tables. Notes what was bought."""
        self.send_changes()
        run_once(*self.flows(*names))
        rows = self.connection.execute("SELECT id, user_id, time FROM purchases WHERE amount > 0").fetchall()
        self.bought |= {number: (user, time) for number, user, time in rows}

    def messages(self, topic: str) -> list[expected.Message]:
        return expected.messages(settings().kafka, self.topics[topic].name)

    def seen(self) -> list[dict[str, Any]]:
        silver, _ = expected_views.silver_and_quarantine(self.messages("page-views"))
        return list(silver.values())

    def close(self) -> None:
        self._connect.remove(self.connection, self.name)
        self.connection.close()
        for topic in self.topics.values():
            topic.delete()


@pytest.fixture
def shop(server: Server, kafka_connect: Connect, name: str) -> Iterator[Shop]:
    shop = Shop(server, kafka_connect, name)
    yield shop
    shop.close()


def view_of(user: str, document: str, time: datetime) -> Event:
    body = _text(f"{user} {document} {time}") + _long(int(time.timestamp() * 1000)) + _text(document) + _optional(user)
    return Event(document.encode(), b"\0" + (1).to_bytes(4, "big") + body, "good")


def purchase_of(user: str, time: datetime, amount: Decimal = Decimal(10)) -> purchases.Change:
    return purchases.Change(purchases.BUY, (user, amount, time), "good")


def conversion(seen: list[dict[str, Any]], bought: list[tuple[str, datetime]]) -> dict[tuple, Counter]:
    """By hour and document: views of users who were logged in, conversions and bounces."""
    views_of_users = [view for view in seen if view["user_id"] is not None]
    events = [("view", view["user_id"], view["time"]) for view in views_of_users]
    events += [("purchase", *purchase) for purchase in bought]
    by_user: dict[str, list[tuple[str, datetime]]] = {}
    for kind, user, time in events:
        by_user.setdefault(user, []).append((kind, time))
    counts: dict[tuple, Counter] = {}
    for view in views_of_users:
        begin = view["time"]
        later = [kind for kind, time in by_user[view["user_id"]] if begin < time < begin + HALF_AN_HOUR]
        hour = begin.replace(minute=0, second=0, microsecond=0)
        count = counts.setdefault((hour, view["document_id"]), Counter())
        count.update(views=1, conversions="purchase" in later, bounces=not later)
    return counts


def assert_conversion_is_right(shop: Shop) -> dict[tuple, Counter]:
    """Assert that gold is what plain Python computes from all page views and purchases. Returns it."""
    rows = shop.rows("gold.conversion_by_hour")
    columns = ("views", "conversions", "bounces")
    stored = {(row["hour"], row["document_id"]): {name: row[name] for name in columns} for row in rows}
    computed = conversion(shop.seen(), list(shop.bought.values()))
    assert stored == computed
    assert len(stored) == len(rows)
    for flow in shop.flows(*CONVERSION):
        verify.verify(flow)
    return computed


def assert_purchases_are_those_of_the_database(shop: Shop) -> None:
    good = "SELECT id, user_id, amount, time FROM purchases WHERE amount > 0 ORDER BY id"
    stored = sorted((row["id"], row["user_id"], row["amount"], row["time"]) for row in shop.rows("silver.purchases"))
    assert stored == shop.connection.execute(good).fetchall()


def test_conversion_is_right_also_after_late_rows(shop: Shop, run_once, spark: SparkSession, monkeypatch):
    purchases.open_shop(shop.connection, seed=7)
    shop.view(*views(7, 1_500, START, per_second=1))
    shop.change(*purchases.changes(8, 150, START, per_second=0.1))
    shop.change(purchase_of("user-001", START, amount=Decimal(0)))
    shop.read(run_once, *CONVERSION)
    quarantined = rows_of(shop.tables["silver.purchases"].quarantine)
    assert ("user-001", START, ["an amount above zero"]) in [
        (row["user_id"], row["time"], row["_rules"]) for row in quarantined
    ]
    assert_purchases_are_those_of_the_database(shop)
    before = assert_conversion_is_right(shop)
    assert sum(count["conversions"] for count in before.values()) > 100

    # Late rows change outcomes of the hour before: a view and a purchase after it, a correction, and what is cancelled.
    late = START - timedelta(minutes=31)
    shop.view(*(view_of(f"user-{number:03d}", "document-007", late) for number in range(50)))
    shop.view(*views(9, 600, START + timedelta(minutes=25), per_second=1))
    shop.change(*(purchase_of(f"user-{number:03d}", late + timedelta(minutes=number)) for number in range(50)))
    shop.change(purchases.Change(purchases.CORRECT, (Decimal(5), "user-001", START), "corrected"))
    shop.change(*purchases.changes(10, 100, START + timedelta(minutes=25), per_second=0.2))
    with kill_next_batch(monkeypatch, f"{shop.tables['silver.page_events'].name}.purchases", is_written=True):
        shop.read(run_once, *CONVERSION)
    shop.read(run_once, *CONVERSION)
    assert_purchases_are_those_of_the_database(shop)
    after = assert_conversion_is_right(shop)
    hour = late.replace(minute=0)
    # User 0 bought at the moment of the view, and those from 30 on too late.
    assert after[hour, "document-007"]["conversions"] >= 29
    assert before.get((hour, "document-007")) != after[hour, "document-007"]

    if FULL:
        begin = int(hour.timestamp())
        Backfills(spark, shop.flows(*CONVERSION)).run(shop.tables["gold.conversion_by_hour"], begin, begin + 3600)
        assert assert_conversion_is_right(shop) == after


@only_in_full_runs
def test_customers_and_their_history_are_those_of_the_database(shop: Shop, run_once, spark: SparkSession):
    chance = random.Random(5)
    purchases.open_shop(shop.connection, seed=5)
    shop.send_changes()
    for _ in range(2):
        # Few users, so that a customer moves, leaves and returns.
        for _ in range(40):
            user, country = f"user-{chance.randrange(5):03d}", chance.choice(purchases.COUNTRIES)
            statement, *values = chance.choice(
                ((purchases.MOVE, country, user), (purchases.LEAVE, user), (purchases.RETURN, user, country))
            )
            shop.change(purchases.Change(statement, tuple(values), "good"))
        shop.read(run_once, *CUSTOMERS, *PURCHASES)
        in_database = shop.connection.execute("SELECT user_id, country FROM customers ORDER BY user_id").fetchall()
        assert sorted((row["user_id"], row["country"]) for row in shop.rows("silver.customers")) == in_database
        assert history_of(shop) == expected_history(shop)
    assert len(expected_history(shop)) > USERS

    view = catalog.load().table("gold.revenue_by_country")
    stored = {
        name: spark.read.format("delta").load(str(locations.table_path(shop.tables[f"silver.{name}"].name)))
        for name in ("purchases", "customers")
    }
    revenue = {row.country: (row.purchases, row.amount) for row in refresh.computed(stored, view).collect()}
    computed = shop.connection.execute(
        "SELECT country, count(*), sum(amount) FROM purchases LEFT JOIN customers USING (user_id) WHERE amount > 0 "
        "GROUP BY country"
    )
    assert revenue == {country: tuple(values) for country, *values in computed.fetchall()}


def history_of(shop: Shop) -> list[tuple]:
    columns = ("user_id", "country", "valid_from", "valid_to", "is_current")
    spans = [tuple(row[name] for name in columns) for row in shop.rows("silver.customer_history")]
    return sorted(spans, key=lambda span: span[:3])


def expected_history(shop: Shop) -> list[tuple]:
    """What the messages of the connector say, by the clock of the database."""
    by_user: dict[str, list[tuple]] = {}
    for message in shop.messages(SHOP_TOPICS["customers"]):
        if message.value is None:
            continue
        event = json.loads(message.value)
        row, is_deleted = event["after"] or event["before"], event["op"] == "d"
        country = None if is_deleted else row["country"]
        change = (row["user_id"], country, None, event["source"]["ts_ms"], is_deleted)
        by_user.setdefault(row["user_id"], []).append(change)
    rows = [row for found in by_user.values() for row in expected_changes.history(found, slice(1, 3))]
    # Of each: user, country, two values without a meaning here, begin, end, and whether it is current.
    spans = [(*row[:2], _moment(row[4]), _moment(row[5]), row[6]) for row in rows]
    return sorted(spans, key=lambda span: span[:3])


def _moment(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)
