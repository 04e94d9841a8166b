"""JSON whose schemas a registry knows: valid rows are typed, others name their schema and their field."""

import json
from dataclasses import replace
from typing import Any

import pytest

from include.delta.delta_log import DeltaLog
from include.engine.rows.transform import apply_transform
from include.errors import FlowBroken
from include.kafka import schema_registry
from include.lake import locations
from include.settings import settings
from include.spec import KAFKA_SCHEMA_WITH_IDS, Delta, Expect, Flow, Json, Kafka, Registry, Table
from tests.support.commits import switch_fast_path
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.kafka.registry import SchemaRegistry
from tests.support.topic import Topic

INTO = ("order_id", "amount", "note")
TEXT, INTEGER = {"type": "string"}, {"type": "integer"}


def schema(*required: str, title: str = "Order", definitions: dict | None = None, **properties: Any) -> str:
    parts = {"type": "object", "properties": properties, "required": list(required), "definitions": definitions or {}}
    return json.dumps({"title": title, **parts})


# As Confluent's serializers write a field that may be null.
NULLABLE = {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/note"}]}
V1 = schema("order_id", order_id=TEXT, amount={**INTEGER, "maximum": 100})
V2 = schema("order_id", definitions={"note": TEXT}, order_id=TEXT, amount=INTEGER, note=NULLABLE)
# Refers to itself in two ways.
A, B = {"$ref": "#/definitions/a"}, {"$ref": "#/definitions/b"}
CIRCLE = {"a": {"type": "string", "anyOf": [A, B]}, "b": {"anyOf": [A, B]}}


def value(schema_id: int, document: Any) -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    return b"\0" + schema_id.to_bytes(4, "big") + text


@pytest.fixture
def registry(monkeypatch):
    server = SchemaRegistry()
    changed = replace(settings(), schema_registry=server.url)
    monkeypatch.setattr(schema_registry, "settings", lambda: changed)
    monkeypatch.setattr(schema_registry, "REPLICA_SECONDS", 0.1)
    yield server
    server.stop()


@pytest.fixture
def orders(name: str) -> Table:
    return Flow(
        name=f"silver.{name}",
        comment="orders",
        source=Delta(f"bronze.{name}"),
        parse=Json("value", into=INTO, registry=Registry()),
        schema="order_id STRING, amount BIGINT, note STRING, offset BIGINT, "
        "_errors ARRAY<STRUCT<field: STRING, message: STRING>>",
        expect=(Expect("typed", "size(_errors) = 0"),),
    )


def messages(row: Any) -> list[str]:
    return [f"{error['field']}: {error['message']}" for error in row["_errors"]]


@pytest.mark.parametrize("is_fast", [True, pytest.param(False, marks=only_in_full_runs)])
def test_rows_that_break_their_schema_are_quarantined_with_its_id_and_the_field(
    broker, registry, orders, name, run_once, monkeypatch, is_fast
):
    switch_fast_path(monkeypatch, is_fast)
    topic = Topic(broker).create()
    source = Kafka(topic.name, schema_ids=True)
    bronze = Flow(name=f"bronze.{name}", comment="", source=source, schema=KAFKA_SCHEMA_WITH_IDS)
    assert [registry.register(text) for text in (V1, V2)] == [1, 2]
    topic.send(value(1, {"order_id": "a", "amount": 7}), value(1, {"order_id": "b", "amount": 101}))
    run_once(bronze, orders)
    topic.send(value(2, {"order_id": "c", "note": "n"}), value(2, {"order_id": "d", "note": 3}), value(9, {}))
    topic.send(value(1, {"amount": "x"}), value(1, b"{"), value(1, b"\xff"), b'{"order_id": "e"}')
    run_once(bronze)
    registry.stop()
    with pytest.raises(Exception, match="SCHEMA_REGISTRY_UNREACHABLE|does not answer"):
        run_once(orders)
    assert len(rows_of(orders.name)) == 1, "nothing of the batch is written"
    registry.start()
    run_once(orders)
    rows = [tuple(row[column] for column in INTO) for row in rows_of(orders.name)]
    assert sorted(rows, key=str) == [("a", 7, None), ("c", None, "n")]
    assert [messages(row) for row in sorted(rows_of(orders.quarantine), key=lambda row: row["offset"])] == [
        ["amount: 101 is greater than the maximum of 100 (schema id 1)"],
        ["note: 3 is not valid under any of the schemas listed in the 'oneOf' keyword (schema id 2)"],
        ["value: schema id 9 is not in the schema registry"],
        ['order_id: "order_id" is a required property (schema id 1)', "amount: 'x' is no BIGINT"],
        ["value: '{' is no JSON object"],
        ["value: '\ufffd' is no UTF-8"],
        ["value: X'7B226F726465725F6964223A202265227D' has no schema registry header"],
    ]
    assert registry.asked == {1: 1, 2: 1, 9: 2}
    metadata = [commit.metadata for commit in DeltaLog(locations.table_path(orders.name)).commits()]
    assert {batch["fast_path"] for batch in metadata if batch.get("flow")} == {is_fast}


def typed(spark, table: Table, registry: Registry, values: list[bytes]) -> list[list[str]]:
    table = replace(table, parse=replace(table.parse, registry=registry))
    rows = spark.createDataFrame([(item, number) for number, item in enumerate(values)], "value BINARY, offset BIGINT")
    return [messages(row) for row in apply_transform(rows, table).orderBy("offset").collect()]


def test_a_json_schema_that_may_not_evolve_is_refused(registry, orders, spark):
    wide = {"anyOf": [INTEGER, {"type": "number"}]}
    texts = [
        V2,
        V1,
        schema(order_id=TEXT, amount=wide, note=TEXT),
        schema(order_id=TEXT, amount=INTEGER, note=TEXT, colour=TEXT),
        schema(title="Cart", order_id=TEXT, amount=INTEGER, note=TEXT),
        '{"type": "record", "name": "Order", "fields": []}',
        schema(order_id=TEXT, amount=INTEGER, note={"$ref": "http://127.0.0.1:1/note.json"}),
        schema(order_id={"type": "string", "pattern": "("}, amount=INTEGER, note=TEXT),
        schema(definitions=CIRCLE, order_id=TEXT, amount=INTEGER, note=A),
    ]
    values = [value(registry.register(text), {"order_id": "a", "amount": 1, "note": "n"}) for text in texts]
    in_all = [
        [],
        ["value: schema id 2 lacks the field 'note'"],
        ["value: schema id 3 has 'amount' as integer or number, which does not fit BIGINT"],
        ["value: schema id 4 has the field 'colour', which into does not name"],
        [],
        ["value: schema id 6 is no JSON Schema that Sluice can read"],
        ["value: schema id 7 is no JSON Schema that Sluice can read"],
        ["value: schema id 8 is no JSON Schema that Sluice can read"],
        [],
    ]
    assert typed(spark, orders, Registry(evolution="refuse"), values) == in_all
    followed = [[], [], [], [], *in_all[4:]]
    assert typed(spark, orders, Registry(), values) == followed
    assert typed(spark, orders, Registry(record="Order"), [values[0], values[4]]) == [
        [],
        ["value: schema id 5 is the record Cart, not Order"],
    ]
    with pytest.raises(FlowBroken, match="schema id 4 has the field 'colour'.*evolution='fail'"):
        typed(spark, orders, Registry(evolution="fail"), [values[0], values[3]])
