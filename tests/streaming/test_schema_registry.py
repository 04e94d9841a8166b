"""Avro values whose schemas a registry knows: they evolve, and the registry comes and goes."""

import base64
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from include.catalog import Catalog
from include.engine.batch.table_rows import apply_transform
from include.engine.check import check
from include.engine.preview import preview
from include.engine.preview.preview import PreviewRequest
from include.errors import FlowBroken
from include.examples.views import _long, _optional, _text
from include.monitoring import status
from include.readers import schema_registry
from include.readers.delta_log import DeltaLog
from include.readers.schema_registry import RegistryUnreachable
from include.settings import settings
from include.spec import KAFKA_SCHEMA_WITH_IDS, Avro, Delta, Expect, Kafka, Registry, Table
from tests.support.commits import switch_fast_path
from tests.support.flows import rows_of
from tests.support.registry import SchemaRegistry
from tests.support.topic import Topic

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
BIG = 2**40
# As `v1("a")` makes it.
A = ("a", 7, None, None)


def value(schema_id: int, *parts: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + b"".join(parts)


def v1(order: str) -> bytes:
    return value(1, _text(order), _long(7))


def v2(order: str) -> bytes:
    return value(2, _text(order), _long(BIG), _optional("n"))


def v3(order: str) -> bytes:
    return value(3, _optional("m"), _text("red"), _text(order))


@dataclass
class Orders:
    """A topic of orders, its tables, and a registry that demands a password."""

    registry: SchemaRegistry
    topic: Topic
    bronze: Table
    silver: Table

    def rows(self) -> list[tuple[Any, ...]]:
        columns = ("order_id", "amount", "note", "_rescued_data")
        return sorted(tuple(row[column] for column in columns) for row in rows_of(self.silver.name))

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
    bronze = Table(
        name=f"bronze.{name}",
        comment="as it came",
        source=Kafka(topic.name, schema_ids=True),
        schema=KAFKA_SCHEMA_WITH_IDS,
    )
    silver = Table(
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


@pytest.mark.parametrize("is_fast", [True, False])
def test_rows_of_three_schemas_in_one_topic_are_read_and_an_unknown_id_is_quarantined(
    orders, run_once, monkeypatch, capfd, is_fast: bool
):
    switch_fast_path(monkeypatch, is_fast)
    assert [orders.registry.register(schema) for schema in (V1, V2)] == [1, 2]
    orders.topic.send(v1("a"), v2("b"), v1("c"))
    run_once(orders.bronze, orders.silver)
    assert orders.registry.register(V3) == 3
    orders.topic.send(v3("d"), v1("e"), value(99, b"?"), v2("f"), v3("g"))
    run_once(orders.bronze, orders.silver)
    orders.topic.send(v3("h"), v1("i"))
    run_once(orders.bronze, orders.silver)
    expected_rows = [
        *[(order, 7, None, None) for order in "acei"],
        *[(order, BIG, "n", None) for order in "bf"],
        *[(order, None, "m", '{"colour":"red"}') for order in "dgh"],
    ]
    assert orders.rows() == sorted(expected_rows)
    assert orders.quarantined() == ["schema id 99 is not in the schema registry"]
    # The second question follows the first, for replicas that learn later.
    assert orders.registry.asked == {1: 1, 2: 1, 3: 1, 99: 2}
    log = DeltaLog(settings().table_path(orders.silver.name))
    paths = [commit.metadata.get("fast_path") for commit in log.commits() if commit.metadata.get("flow")]
    assert paths == [is_fast] * 3
    assert_nowhere(PASSWORD, capfd.readouterr())


def assert_nowhere(secret: str, output: Any) -> None:
    """The secret is in no file of the home and in no output, as it is or in base64."""
    needles = [secret.encode(), base64.b64encode(f"reader:{secret}".encode())]
    texts = {"stdout": output.out.encode(), "stderr": output.err.encode()}
    texts |= {str(file): file.read_bytes() for file in settings().home.rglob("*") if file.is_file()}
    assert [place for place, text in texts.items() if any(needle in text for needle in needles)] == []


def test_an_outage_of_the_registry_stops_silver_alone_and_loses_nothing(orders, run_once):
    orders.registry.register(V1)
    orders.topic.send(v1("a"))
    run_once(orders.bronze, orders.silver)
    orders.registry.register(V2)
    orders.registry.stop()
    orders.topic.send(v1("b"), v2("c"), v1("d"))
    run_once(orders.bronze)
    assert len(rows_of(orders.bronze.name)) == 4
    with pytest.raises(RegistryUnreachable, match="does not answer .*rows wait") as error:
        run_once(orders.silver)
    assert error.value.error == "SCHEMA_REGISTRY_UNREACHABLE" and not error.value.needs_person
    states = {flow.flow: flow for flow in status.statuses(Catalog({t.name: t for t in (orders.bronze, orders.silver)}))}
    assert states[orders.silver.flow].state == "BACKING OFF"
    assert "the schema registry" in states[orders.silver.flow].reason
    assert orders.rows() == [A] and orders.quarantined() == []
    orders.registry.start()
    run_once(orders.silver)
    assert orders.rows() == [A, ("b", 7, None, None), ("c", BIG, "n", None), ("d", 7, None, None)]
    assert orders.quarantined() == []


def test_all_rows_come_out_the_same_again_while_the_registry_is_gone(orders, run_once, spark: SparkSession):
    for schema in (V1, V2, V3):
        orders.registry.register(schema)
    orders.topic.send(v1("a"), v2("b"), v3("c"), value(99, b"?"), b"no header")
    run_once(orders.bronze, orders.silver)
    rows, quarantined = orders.rows(), orders.quarantined()
    assert len(rows) == 3 and len(quarantined) == 2
    orders.registry.stop()
    for table in (orders.silver.name, orders.silver.quarantine):
        shutil.rmtree(settings().table_path(table))
    shutil.rmtree(settings().checkpoints(orders.silver.flow))
    run_once(orders.silver)
    assert (orders.rows(), orders.quarantined()) == (rows, quarantined)
    # A backfill computes from rows that are no stream.
    source = spark.read.format("delta").load(str(settings().table_path(orders.bronze.name)))
    recomputed = apply_transform(source, orders.silver).filter("size(_errors) = 0").collect()
    assert sorted((row.order_id, row.amount, row.note, row["_rescued_data"]) for row in recomputed) == rows
    orders.registry.start()


def test_a_preview_and_the_check_go_without_the_registry(orders, run_once, spark: SparkSession):
    orders.registry.register(V1)
    orders.topic.send(v1("a"), v1("b"))
    run_once(orders.bronze, orders.silver)
    orders.registry.stop()
    orders.topic.send(v2("c"))
    run_once(orders.bronze)
    tables = Catalog({table.name: table for table in (orders.bronze, orders.silver)})
    [shown] = preview.previews(PreviewRequest(spark, tables, 10), orders.silver.name)
    assert shown.outcome.ends == {"kept": 2, "quarantine": 1}
    assert "the schema registry" in shown.notes[0] and "does not answer" in shown.notes[0]
    check._check_flow(spark, orders.silver, tables)
    orders.registry.start()


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
    assert typed(spark, orders.silver, Registry(evolution="refuse"), values) == [
        (None, ["schema id 1 lacks the field 'note'"]),
        ("a", []),
        (None, [f"schema id {other} has 'amount' as DOUBLE, which does not fit BIGINT"]),
        (None, [f"schema id {grown} has the field 'colour', which into does not name"]),
        (None, [f"schema id {cart} lacks the field 'amount'"]),
        (None, [f"schema id {circle} {unreadable}"]),
        (None, [f"schema id {text} {unreadable}"]),
    ]
    named = typed(spark, orders.silver, Registry(record="com.example.Order"), [values[fitting - 1], values[cart - 1]])
    assert named == [("a", []), (None, [f"schema id {cart} is the record com.example.Cart, not com.example.Order"])]
    with pytest.raises(FlowBroken, match=f"schema id {grown} has the field 'colour'.*evolution='fail'"):
        typed(spark, orders.silver, Registry(evolution="fail"), [values[fitting - 1], values[grown - 1]])
