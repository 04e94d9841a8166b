"""The table files of the guides do what these pages say, and the commands of docs/guides/declare-a-table.md exist."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from include import catalog
from include.catalog import Catalog
from include.control.commands import Action
from include.control.supervision import supervision
from include.engine.check import check
from include.engine.jobs import refresh
from include.engine.rows.transform import apply_transform
from include.engine.tables import create_table
from include.errors import DeclarationError
from include.lake import locations
from include.ledger import row_outcomes
from include.settings import settings
from include.spec import KAFKA_SCHEMA, Delta, Json, Table
from tests.conftest import ROOT
from tests.streaming.conftest import append, run_once  # noqa: F401
from tests.support.flows import rows_of

GUIDES = ROOT / "docs" / "guides"
NAMES = ("changes-of-keys", "history", "joins", "lookups", "join-events", "late-rows")
RECIPES = [(GUIDES / f"{name}.md").read_text() for name in NAMES]
FILE = re.compile(r"`include/(?:examples/)?tables/(\w+/\w+\.py)`(?:(?!```).)*```python\n(.*?)```", re.DOTALL)
SHIPPED_FILE = re.compile(r"`include/examples/tables/(\w+/\w+\.py)`:\n\n```python\n(.*?)```", re.DOTALL)
# Tables that the pages describe without a file.
OTHER_FILES = {
    f"bronze/{name}.py": "from include.spec import Kafka, Table\n"
    f'TABLE = Table(name="bronze.{name}", comment="as it came", source=Kafka("{name}"))\n'
    for name in ("orders", "customer_changes")
}
CHANGES = "customer STRING, city STRING, is_deleted BOOLEAN, changed_at TIMESTAMP, partition INT, offset BIGINT"
ORDER = "order_id STRING, customer STRING, amount DECIMAL(10,2), time TIMESTAMP"
ERRORS = "_errors ARRAY<STRUCT<field: STRING, message: STRING>>"
OTHER_FILES["silver/customer_changes.py"] = f"""
from include.spec import Delta, Json, Table
TABLE = Table(
    name="silver.customer_changes",
    comment="One row per change of a customer",
    source=Delta("bronze.customer_changes"),
    parse=Json("value", into=("customer", "city", "is_deleted", "changed_at")),
    schema="{CHANGES}, {ERRORS}",
)
"""
SHIPPED = ROOT / "include" / "examples" / "tables"
# Those that `join-events` reads.
for name in ("bronze/page_views.py", "silver/page_views.py", "bronze/purchases.py", "silver/purchases.py"):
    OTHER_FILES[name] = (SHIPPED / name).read_text()
EVENTS = {
    "page_views": "view_id STRING, user_id STRING, document_id STRING, time TIMESTAMP",
    "purchases": "id BIGINT, user_id STRING, time TIMESTAMP, _sequence BIGINT",
}
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def day(number: int) -> datetime:
    return datetime(2026, 3, number, tzinfo=UTC)


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory) -> Iterator[Path]:
    """A home directory for this module, because its tables have the names of the pages."""
    with pytest.MonkeyPatch.context() as environment:
        directory = tmp_path_factory.mktemp("recipes")
        environment.setenv("SLUICE_HOME", str(directory))
        # The flows of the examples that have these names, too, do not run here, and nothing shall wait for them.
        environment.setenv("SLUICE_EXAMPLES", "off")
        settings.cache_clear()
        catalog.load.cache_clear()
        yield directory
    settings.cache_clear()
    catalog.load.cache_clear()


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Catalog:
    """The catalog of all table files of the pages."""
    files = OTHER_FILES | {path: text for page in RECIPES for path, text in FILE.findall(page)}
    package_parent = tmp_path_factory.mktemp("files")
    for path, text in files.items():
        file = package_parent / "recipes_of_docs" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        for package in (file.parent, file.parent.parent):
            (package / "__init__.py").touch()
        file.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(package_parent)
        return catalog.require("recipes_of_docs")


@pytest.fixture
def arrive(spark: SparkSession, tables: Catalog, append) -> Callable[..., None]:  # noqa: F811
    """Store orders in bronze as if they came from Kafka."""
    bronze = tables.tables["bronze.orders"]
    offset = 0

    def write(*values: dict | str) -> None:
        nonlocal offset
        create_table.create(spark, bronze)
        rows = []
        for value in values:
            text = json.dumps(value) if isinstance(value, dict) else value
            position = {"topic": "orders", "partition": 0, "offset": offset, "timestamp": day(5)}
            rows.append({"value": bytearray(text.encode()), **position})
            offset += 1
        append(bronze.name, rows, KAFKA_SCHEMA)

    return write


@pytest.fixture
def change(spark: SparkSession, tables: Catalog, append) -> Callable[..., None]:  # noqa: F811
    """Store changes in silver: customer, city (None: deleted), day in March."""
    silver = tables.tables["silver.customer_changes"]
    offset = 0

    def write(*changes: tuple[str, str | None, int]) -> None:
        nonlocal offset
        create_table.create(spark, silver)
        rows = []
        for customer, city, day_number in changes:
            position = {"changed_at": day(day_number), "partition": 0, "offset": offset}
            rows.append({"customer": customer, "city": city, "is_deleted": city is None, **position})
            offset += 1
        append(silver.name, rows, f"{CHANGES}, {ERRORS}")

    return write


def order(number: int, minutes: float = 0, **fields: object) -> dict:
    time = (NOON + timedelta(minutes=minutes)).isoformat()
    return {"order_id": f"o-{number}", "customer": "ada", "time": time, "amount": 10, **fields}


def orders_of(table: str) -> list[str]:
    return sorted(row["order_id"] for row in rows_of(table))


def test_every_table_file_of_the_pages_is_found_and_right(spark: SparkSession, tables: Catalog):
    block_count = sum(page.count("```python") for page in RECIPES)
    assert len(tables.tables) == len(OTHER_FILES) + block_count
    check.check(spark, tables)


def test_orders_with_errors_and_late_ones(spark: SparkSession, tables: Catalog, arrive, run_once, home: Path):  # noqa: F811
    silver = tables.tables["silver.orders"]
    future_order = order(9, minutes=100_000)
    arrive(order(1, minutes=-9_999), order(2), order(3, amount="much"), future_order)
    run_once(silver)
    assert orders_of(silver.name) == ["o-1", "o-2", "o-3"], "nothing is late in the first batch"
    assert {row["order_id"]: len(row["_errors"]) for row in rows_of(silver.name)} == {"o-1": 0, "o-2": 0, "o-3": 1}
    assert row_outcomes.batches(silver, 1)[0].broke["typed"] == 1

    arrive(order(4, minutes=-60), order(5, minutes=-61), order(2))
    run_once(silver)
    assert orders_of(silver.name) == ["o-1", "o-2", "o-3", "o-4"]
    rules_by_order = {row["order_id"]: row["_rules"] for row in rows_of(silver.quarantine)}
    assert rules_by_order == {"o-9": ["not of the future"], "o-5": ["later than 60 minutes"]}
    assert f'--rule "{rules_by_order["o-5"][0]}"' in (GUIDES / "late-rows.md").read_text()

    page = (GUIDES / "typed-values.md").read_text()
    [command] = re.findall(r"```sh\nsource var/env.sh\n(.*?)```", page, re.DOTALL)
    [expected_output] = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    environment = {
        **os.environ,
        "SLUICE_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    result = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == (expected_output, "")


def test_dimensions_and_the_join_with_one(spark: SparkSession, tables: Catalog, change, append, run_once):  # noqa: F811
    names = ("gold.customers", "gold.customer_history", "gold.revenue_by_city")
    customers, history, view = (tables.tables[name] for name in names)

    def current_cities() -> dict[str, str]:
        return {row["customer"]: row["city"] for row in rows_of(customers.name)}

    def spans(customer: str) -> list[tuple]:
        rows = [row for row in rows_of(history.name) if row["customer"] == customer]
        return sorted((row["valid_from"], row["valid_to"], row["city"]) for row in rows)

    change(("ada", "Bonn", 1), ("bob", "Rome", 1), ("ada", "Kiel", 9), ("bob", "Oslo", 2))
    run_once(customers, history)
    assert current_cities() == {"ada": "Kiel", "bob": "Oslo"}
    assert spans("ada") == [(day(1), day(9), "Bonn"), (day(9), None, "Kiel")]

    late_change, correction, deletion = ("ada", "Lyon", 4), ("ada", "Ulm", 9), ("bob", None, 5)
    change(late_change, correction, deletion)
    run_once(customers, history)
    assert current_cities() == {"ada": "Ulm"}
    assert spans("ada") == [(day(1), day(4), "Bonn"), (day(4), day(9), "Lyon"), (day(9), None, "Ulm")]
    assert spans("bob") == [(day(1), day(2), "Rome"), (day(2), day(5), "Oslo")]

    order_values = [("ada", day(3), 10), ("ada", day(4), 5), ("bob", day(6), 2), ("eve", day(3), 1)]
    orders = spark.createDataFrame(
        [(customer, time, Decimal(amount)) for customer, time, amount in order_values],
        "customer STRING, time TIMESTAMP, amount DECIMAL(10,2)",
    )
    history_rows = spark.read.format("delta").load(str(locations.table_path(history.name)))
    view_rows = refresh.computed({"orders": orders, "customers": history_rows}, view).collect()
    assert {row.city: (row.order_count, row.amount) for row in view_rows} == {
        "Bonn": (1, 10),
        "Lyon": (1, 5),
        None: (2, 3),
    }


def test_an_order_gets_the_city_of_its_time_or_waits_in_the_quarantine(
    spark: SparkSession,
    tables: Catalog,
    change,
    append,  # noqa: F811
    run_once,  # noqa: F811
):
    flow, orders = tables.tables["silver.orders_with_city"], tables.tables["silver.orders"]
    change(("cleo", "Nice", 1), ("cleo", "Metz", 4))
    run_once(tables.tables["gold.customer_history"])
    create_table.create(spark, orders)
    rows = [("o-1", "cleo", day(3)), ("o-2", "cleo", day(4)), ("o-3", "nemo", day(4))]
    values = [dict(zip(("order_id", "customer", "time"), row, strict=True)) for row in rows]
    append(orders.name, [{**row, "amount": Decimal(10)} for row in values], ORDER)
    run_once(flow)
    assert {row["order_id"]: row["city"] for row in rows_of(flow.name) if row["customer"] == "cleo"} == {
        "o-1": "Nice",
        "o-2": "Metz",
    }
    assert "o-3" in [row["order_id"] for row in rows_of(flow.quarantine)]


def test_views_are_joined_with_the_purchases_that_follow_them(spark: SparkSession, tables: Catalog, append, run_once):  # noqa: F811
    events, conversions = tables.tables["silver.page_events"], tables.tables["gold.conversion_by_hour"]

    def arrive(name: str, *rows: tuple) -> None:
        table = tables.tables[f"silver.{name}"]
        create_table.create(spark, table)
        append(
            table.name,
            [{"time": NOON + timedelta(minutes=minute), **fields} for minute, fields in rows],
            EVENTS[name],
        )

    def outcomes() -> set[tuple]:
        run_once(*events.flows, conversions)
        columns = ("hour", "document_id", "views", "conversions", "bounces")
        return {tuple(row[column] for column in columns) for row in rows_of(conversions.name)}

    def view(number: int, user: str, document: str) -> dict:
        return {"view_id": f"view-{number}", "user_id": user, "document_id": document}

    def purchase(number: int, user: str) -> dict:
        return {"id": number, "user_id": user, "_sequence": number}

    arrive("page_views", (50, view(1, "ada", "a")), (10, view(2, "bob", "b")), (20, view(3, "bob", "b")))
    arrive("purchases", (90, purchase(1, "bob")))
    assert outcomes() == {(NOON, "a", 1, 0, 1), (NOON, "b", 2, 0, 1)}
    arrive("purchases", (70, purchase(2, "ada")), (25, purchase(3, "bob")))
    assert outcomes() == {(NOON, "a", 1, 1, 0), (NOON, "b", 2, 2, 0)}


def test_a_file_of_the_examples_stands_in_a_page_as_it_is_shipped():
    printed = [entry for page in GUIDES.glob("*.md") for entry in SHIPPED_FILE.findall(page.read_text())]
    assert len(printed) == 3
    for name, text in printed:
        assert text == (SHIPPED / name).read_text()


def test_a_nested_object_is_taken_apart_and_a_time_without_a_zone_is_utc(spark: SparkSession):
    page = (GUIDES / "transforms.md").read_text()
    [query] = re.findall(r'`transform="(SELECT \*, get_json_object.*?)"`', page)
    table = Table(
        name="silver.addresses",
        comment="",
        source=Delta("bronze.orders"),
        parse=Json("value", into=("address", "time")),
        schema=f"address STRING, time TIMESTAMP, city STRING, {ERRORS}",
        transform=query,
    )
    value = bytearray(b'{"address": {"city": "Bonn", "zip": 53111}, "time": "2026-03-01T12:00:00"}')
    [row] = apply_transform(spark.createDataFrame([{"value": value}], KAFKA_SCHEMA), table).collect()
    assert (json.loads(row.address), row.city) == ({"city": "Bonn", "zip": 53111}, "Bonn")
    assert (row.time.replace(tzinfo=UTC), row["_errors"]) == (NOON, [])


def test_what_is_to_be_typed_on_a_running_platform_is_known():
    page = (GUIDES / "declare-a-table.md").read_text()
    [form] = re.findall(r"`airflow dags trigger control.stream -c '(.*?)'`", page)
    assert json.loads(form).keys() == {"flow", "action", "reason"}
    assert json.loads(form)["action"] in list(Action)
    assert f"`airflow dags trigger {supervision.SUPERVISOR}`" in page


JOINS: dict[str, str | Callable] = {
    "SQL": "SELECT order_id, city FROM source JOIN gold.customers USING (customer)",
    "Python": lambda rows: rows.join(rows.sparkSession.range(9).selectExpr("'' AS customer", "'' AS city"), "customer"),
}


@pytest.mark.parametrize("language", JOINS)
def test_a_stream_that_looks_something_up_is_refused(spark: SparkSession, tables: Catalog, language: str):
    orders = tables.tables["silver.orders"]
    joining_table = Table(
        name="gold.located_orders",
        comment="",
        source=Delta(orders.name),
        schema="order_id STRING, city STRING",
        transform=JOINS[language],
    )
    with pytest.raises(DeclarationError, match="gold/located_orders.py"):
        check.check(
            spark, Catalog({table.name: table for table in (tables.tables["bronze.orders"], orders, joining_table)})
        )
