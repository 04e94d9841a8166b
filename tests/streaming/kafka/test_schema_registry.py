"""Avro values whose schemas a registry knows: they evolve, and the registry comes and goes."""

import base64
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from include import catalog
from include.catalog import Catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.supervision import supervision
from include.delta.delta_log import DeltaLog
from include.engine.check import check
from include.engine.checkpoints import definition
from include.engine.preview import preview
from include.engine.preview.preview import PreviewRequest
from include.engine.rows.transform import apply_transform
from include.errors import FlowBroken
from include.examples.views import _long, _optional, _text
from include.kafka import schema_registry
from include.lake import locations
from include.ledger import verify
from include.settings import settings
from include.spec import KAFKA_SCHEMA_WITH_IDS, Avro, Delta, Expect, Flow, Json, Kafka, Registry, Table
from tests.support import secrets_search
from tests.support.commits import switch_fast_path
from tests.support.flows import Driver, only_in_full_runs, rows_of, wait_for_rows
from tests.support.kafka.apicurio import Apicurio
from tests.support.kafka.registry import SchemaRegistry
from tests.support.topic import Topic
from tests.support.waiting import wait_until

PASSWORD = "correct-horse-battery-staple"


def record(*fields: str, name: str = "Order") -> str:
    return f'{{"type": "record", "name": "{name}", "namespace": "com.example", "fields": [{", ".join(fields)}]}}'


def field(name: str, type_: str) -> str:
    return f'{{"name": "{name}", "type": {type_}}}'


ID = field("order_id", '"string"')
NOTE = '{"name": "note", "type": ["null", "string"], "default": null}'
V1 = record(ID, field("amount", '"int"'))
# A wider type, and a new field that the table declares.
V2 = record(ID, field("amount", '"long"'), NOTE)
# A field that was dropped, and one that the table does not know.
V3 = record(NOTE, field("colour", '"string"'), ID)
V4 = record(ID)
BIG = 2**40


def value(schema_id: int, *parts: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + b"".join(parts)


def v1(order: str) -> bytes:
    return value(1, _text(order), _long(7))


def v2(order: str) -> bytes:
    return value(2, _text(order), _long(BIG), _optional("n"))


def v3(order: str) -> bytes:
    return value(3, _optional("m"), _text("red"), _text(order))


def v4(order: str) -> bytes:
    return value(4, _text(order))


@dataclass
class Orders:
    """A topic of orders, its tables, and a registry that demands a password."""

    registry: SchemaRegistry
    topic: Topic
    bronze: Table
    silver: Table

    def rows(self) -> list[tuple[Any, ...]]:
        columns = ("order_id", "amount", "note", "_rescued_data")
        return sorted((tuple(row[column] for column in columns) for row in rows_of(self.silver.name)), key=str)

    def quarantined(self) -> list[str]:
        return sorted(row["_errors"][0]["message"] for row in rows_of(self.silver.quarantine))


@pytest.fixture
def orders(broker: str, name: str, monkeypatch, tmp_path: Path) -> Iterator[Orders]:
    registry = SchemaRegistry(login=f"reader:{PASSWORD}")
    credentials = tmp_path / "credentials"
    credentials.write_text(f"{registry.login}\n")
    changed = replace(settings(), schema_registry=registry.url, schema_registry_credentials=credentials)
    monkeypatch.setattr(schema_registry, "settings", lambda: changed)
    monkeypatch.setattr(schema_registry, "REPLICA_SECONDS", 0.1)
    topic = Topic(broker).create(2)
    bronze = Flow(
        name=f"bronze.{name}",
        comment="as it came",
        source=Kafka(topic.name, schema_ids=True),
        schema=KAFKA_SCHEMA_WITH_IDS,
    )
    silver = Flow(
        name=f"silver.{name}",
        comment="orders",
        source=Delta(bronze.name),
        parse=Avro("value", into=("order_id", "amount", "note"), registry=Registry()),
        schema="order_id STRING, amount BIGINT, note STRING, offset BIGINT, _rescued_data STRING, "
        "_errors ARRAY<STRUCT<field: STRING, message: STRING>>",
        expect=(Expect("typed", "size(_errors) = 0"),),
    )
    yield Orders(registry, topic, bronze, silver)
    registry.stop()


def test_rows_of_many_schemas_arrive_through_an_outage_of_the_registry(orders, spark, name, monkeypatch, capfd):
    registry, topic, silver = orders.registry, orders.topic, orders.silver
    driver = Driver(spark, name, (orders.bronze, silver), is_supervised=True)
    for name_of_function in ("load", "reload"):
        monkeypatch.setattr(catalog, name_of_function, lambda: Catalog(driver.tables))
    driver.start()
    try:
        assert [registry.register(schema) for schema in (V1, V2)] == [1, 2]
        topic.send(v1("a"), v2("b"), v1("c"))
        wait_for_rows(silver, 3)
        assert registry.register(V3) == 3
        topic.send(v3("d"), v1("e"), value(99, b"?"), v2("f"), v3("g"))
        wait_for_rows(silver, 7)
        assert registry.register(V4) == 4
        registry.stop()
        topic.send(v3("h"), v4("i"), v1("j"))
        wait_for_rows(orders.bronze, 11)
        wait_until(lambda: state_of(driver, silver)[0] == "BACKING OFF", 120)
        assert f"the schema registry {registry.url} does not answer" in state_of(driver, silver)[1]
        assert driver.query(silver) is None and driver.query(orders.bronze).isActive
        assert len(orders.rows()) == 7 and len(orders.quarantined()) == 1
        registry.start()
        # As the supervisor does after a while.
        commands.execute(driver.engine, Command(Action.RESTART, (silver.flow,), "test", "the registry is back"))
        topic.send(v3("k"))
        wait_for_rows(silver, 11)
    finally:
        driver.end()
    assert driver.error is None
    expected_rows = [(order, 7, None, None) for order in "acej"] + [(order, BIG, "n", None) for order in "bf"]
    expected_rows += [(order, None, "m", '{"colour":"red"}') for order in "dghk"] + [("i", None, None, None)]
    assert orders.rows() == sorted(expected_rows, key=str)
    assert orders.quarantined() == ["schema id 99 is not in the schema registry"]
    # The second question follows the first, for replicas that learn later.
    assert registry.asked == {1: 1, 2: 1, 3: 1, 4: 1, 99: 2}
    metadata = [commit.metadata for commit in DeltaLog(locations.table_path(silver.name)).commits()]
    assert all(batch["fast_path"] for batch in metadata if batch.get("flow"))
    verify.verify(silver)
    assert_nowhere(PASSWORD, capfd.readouterr())


def state_of(driver: Driver, table: Table) -> tuple[str, str]:
    """The state of a flow and its reason, as `make status` shows them."""
    _, decision = supervision.preview(driver.engine, driver.name, [table.flow])[table.flow]
    return decision.state, decision.reason


def assert_nowhere(secret: str, output: Any) -> None:
    """The secret is in no file of the home and in no output, as it is or in base64."""
    needles = [secret.encode(), base64.b64encode(f"reader:{secret}".encode())]
    texts = {"stdout": output.out.encode(), "stderr": output.err.encode()}
    texts |= {str(file): secrets_search.content(file) for file in settings().home.rglob("*") if file.is_file()}
    assert len(texts) > 50
    assert [place for place, text in texts.items() if any(needle in text for needle in needles)] == []


def test_all_rows_come_out_the_same_again_while_the_registry_is_gone(orders, run_once, spark, monkeypatch):
    for schema in (V1, V2, V3):
        orders.registry.register(schema)
    orders.topic.send(v1("a"), v2("b"), v3("c"), value(99, b"?"), b"no header")
    run_once(orders.bronze, orders.silver)
    rows, quarantined = orders.rows(), orders.quarantined()
    assert len(rows) == 3 and len(quarantined) == 2
    orders.registry.stop()
    for table in (orders.silver.name, orders.silver.quarantine):
        shutil.rmtree(locations.table_path(table))
    shutil.rmtree(locations.checkpoints(orders.silver.flow))
    # Spark's writers rebuild the plan of each batch, as jobs do.
    switch_fast_path(monkeypatch, False)
    run_once(orders.silver)
    assert (orders.rows(), orders.quarantined()) == (rows, quarantined)
    orders.topic.send(v4("d"))
    run_once(orders.bronze)
    tables = Catalog({table.name: table for table in (orders.bronze, orders.silver)})
    [shown] = preview.previews(PreviewRequest(spark, tables, 10), orders.silver.name)
    assert shown.outcome.ends == {"kept": 3, "quarantine": 3}
    assert "are shown as errors" in shown.notes[0] and "does not answer" in shown.notes[0]
    check._check_flow(spark, orders.silver, tables)
    orders.registry.start()


@only_in_full_runs
def test_a_registry_that_is_not_ours_gives_the_same_rows(orders, run_once, monkeypatch):
    apicurio = Apicurio()
    try:
        changed = replace(settings(), schema_registry=apicurio.url)
        monkeypatch.setattr(schema_registry, "settings", lambda: changed)
        assert [apicurio.register(schema) for schema in (V1, V2, V3)] == [1, 2, 3]
        orders.topic.send(v1("a"), v2("b"), v3("c"), value(99, b"?"))
        run_once(orders.bronze, orders.silver)
    finally:
        apicurio.stop()
    rows = [("a", 7, None, None), ("b", BIG, "n", None), ("c", None, "m", '{"colour":"red"}')]
    assert orders.rows() == rows
    assert orders.quarantined() == ["schema id 99 is not in the schema registry"]
    orders.topic.send(v2("d"))
    run_once(orders.bronze, orders.silver)
    assert orders.rows() == [*rows, ("d", BIG, "n", None)]


def typed(spark: SparkSession, table: Table, registry: Registry, values: list[bytes]) -> list[tuple[Any, list[str]]]:
    table = replace(table, parse=replace(table.parse, registry=registry))
    rows = spark.createDataFrame([(item, number) for number, item in enumerate(values)], "value BINARY, offset BIGINT")
    typed_rows = apply_transform(rows, table).orderBy("offset").collect()
    return [(row.order_id, [error.message for error in row["_errors"]]) for row in typed_rows]


def test_a_schema_that_may_not_evolve_is_refused(orders, spark: SparkSession):
    orders.registry.register(V1)
    fitting = orders.registry.register(record(ID, field("amount", '"int"'), NOTE))
    other = orders.registry.register(record(ID, field("amount", '"double"'), NOTE))
    grown = orders.registry.register(record(ID, field("amount", '"int"'), NOTE, field("colour", '"string"')))
    cart = orders.registry.register(record(ID, name="Cart"))
    circle = orders.registry.register(record(ID, field("next", '["null", "com.example.Order"]')))
    text = orders.registry.register('syntax = "proto3";')
    values = [value(number, _text("a"), _long(1), b"\0") for number in range(1, 8)]
    unreadable = "is no Avro record that Spark can read"
    of_itself = "which refers to itself, and no column has such a type"
    assert typed(spark, orders.silver, Registry(evolution="refuse"), values) == [
        (None, ["schema id 1 lacks the field 'note'"]),
        ("a", []),
        (None, [f"schema id {other} has 'amount' as DOUBLE, which does not fit BIGINT"]),
        (None, [f"schema id {grown} has the field 'colour', which into does not name"]),
        (None, [f"schema id {cart} lacks the field 'amount'"]),
        (None, [f"schema id {circle} has the record com.example.Order, {of_itself}"]),
        (None, [f"schema id {text} {unreadable}"]),
    ]
    named = typed(spark, orders.silver, Registry(record="com.example.Order"), [values[fitting - 1], values[cart - 1]])
    assert named == [("a", []), (None, [f"schema id {cart} is the record com.example.Cart, not com.example.Order"])]
    with pytest.raises(FlowBroken, match=f"schema id {grown} has the field 'colour'.*evolution='fail'"):
        typed(spark, orders.silver, Registry(evolution="fail"), [values[fitting - 1], values[grown - 1]])


@pytest.mark.parametrize("kind", [Avro, Json])
def test_a_registry_and_its_evolution_are_part_of_the_definition(name, kind):
    def fingerprints(registry: Registry | None) -> tuple[str, str]:
        parse = kind("value", into=("order_id",), registry=registry)
        table = Flow(name=f"silver.{name}", comment="", source=Delta("bronze.x"), schema="order_id STRING", parse=parse)
        return definition.fingerprint(table), definition.rows_fingerprint(table)

    different = {fingerprints(registry) for registry in (None, Registry(), Registry(evolution="fail"))}
    assert [len(set(column)) for column in zip(*different, strict=True)] == [3, 3]
