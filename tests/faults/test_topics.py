"""A table reads several topics, or all topics that match a pattern."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from confluent_kafka import Producer
from sqlalchemy import select

from include.airflow.supervisor import source_health
from include.catalog import Catalog
from include.control.commands import Action
from include.control.store import database
from include.control.store.schema import losses
from include.errors import FlowBroken
from include.lake import locations
from include.monitoring import status
from include.spec import KAFKA_SCHEMA_WITH_IDS, Flow, Kafka, Table
from tests.support.flows import only_in_full_runs, rows_of, wait_for_rows
from tests.support.topic import Topic


@pytest.fixture
def topics(broker: str, name: str) -> list[Topic]:
    """Three topics that do not exist yet: `<name>.a`, `<name>.b` and `<name>.c`."""
    new_topics = [Topic(broker) for _ in range(3)]
    for topic, letter in zip(new_topics, "abc", strict=True):
        topic.name = f"{name}.{letter}"
    return new_topics


def table_of(name: str, source: Kafka, **values: object) -> Table:
    return Flow(name=f"bronze.{name}", comment="many topics", source=source, interval_seconds=0.2, **values)


def assert_holds(table: Table, *topics: Topic, deleted_messages: tuple = ()) -> None:
    stored = Counter((row["topic"], row["partition"], row["offset"], row["value"]) for row in rows_of(table.name))
    messages = [message for topic in topics for message in topic.messages()] + list(deleted_messages)
    assert stored == Counter((message.topic, message.partition, message.offset, message.value) for message in messages)


def lost(engine, table: Table) -> list[tuple]:
    columns = (losses.c.topic, losses.c.partition, losses.c.first, losses.c.after)
    with database.transaction(engine) as connection:
        rows = connection.execute(select(*columns).where(losses.c.flow == table.flow).order_by(losses.c.number))
        return [tuple(row) for row in rows]


def test_a_topic_that_is_added_to_the_list_or_matches_later_is_read_from_its_beginning(topics, run_once, ask, name):
    a, b, c = topics
    a.create(2).send(1, 2)
    b.create().send(3)
    c.create().send(4, 5)
    table = table_of(name, Kafka((a.name, b.name)))
    run_once(table)
    assert_holds(table, a, b)
    assert status.lag(table) == "0 records"
    a.send(6)
    assert status.lag(table) == "1 records"
    table_of_pattern = replace(table, source=Kafka(pattern=rf"{name}\..*"))
    assert status.lag(table_of_pattern) == "3 records"
    run_once(table_of_pattern)
    assert_holds(table, a, b, c)
    c.send(7)
    ask(Action.RESET_CHECKPOINT, table)
    run_once(table_of_pattern)
    assert_holds(table, a, b, c)


def test_a_topic_that_comes_while_a_pattern_is_read_is_read_and_then_known_for_what_it_is(
    topics, driver, run_once, engine, ask, name
):
    a, b, _ = topics
    a.create().send(1)
    table = table_of(name, Kafka(pattern=rf"{name}\.[ab]"))
    with driver(table, is_supervised=False) as running_driver:
        wait_for_rows(table, 1)
        b.create(2).send(2, 3)
        wait_for_rows(table, 3)
        old_messages = b.messages()
        b.delete()
        b.create(2).send(*range(10, 20))
        running_driver.thread.join(240)
        assert running_driver.error.error.startswith(("TOPIC_REPLACED", "KAFKA_DATA_LOSS"))
        assert table.name in str(running_driver.error)
    owner = json.loads((locations.checkpoints(table.flow) / "1" / "owner.json").read_text())
    assert sorted(owner["source"]["topics"]) == [a.name, b.name]
    ask(Action.START, table)
    with pytest.raises(FlowBroken, match=f"topic '{b.name}' was deleted and recreated") as refusal:
        run_once(table)
    assert refusal.value.error == "TOPIC_REPLACED"
    ask(Action.ACCEPT_DATA_LOSS, table)
    a.send(4)
    run_once(table)
    assert_holds(table, a, b, deleted_messages=tuple(old_messages))
    assert lost(engine, table) == [(b.name, 0, 1, None), (b.name, 1, 1, None)]


@only_in_full_runs
def test_a_topic_of_a_pattern_that_is_deleted_is_named_and_left_behind_only_when_somebody_says_so(
    topics, driver, run_once, engine, ask, name
):
    a, b, c = topics
    a.create().send(1)
    b.create().send(2, 3)
    c.create().send(4)
    table = table_of(name, Kafka(pattern=rf"{name}\..*"))
    with driver(table, is_supervised=False) as running_driver:
        wait_for_rows(table, 4)
        old_messages = b.messages() + c.messages()
        b.delete()
        running_driver.thread.join(240)
        assert running_driver.error.error.startswith("KAFKA_DATA_LOSS"), running_driver.error
    ask(Action.START, table)
    c.delete()
    for _ in range(2):
        with pytest.raises(FlowBroken, match=f"topic '{b.name}', which it has read, is no longer among") as refusal:
            run_once(table)
        assert refusal.value.error == "KAFKA_DATA_LOSS"
    ask(Action.ACCEPT_DATA_LOSS, table)
    a.send(5)
    run_once(table)
    assert_holds(table, a, deleted_messages=tuple(old_messages))
    assert lost(engine, table) == [(b.name, 0, 2, None), (c.name, 0, 1, None)]


@only_in_full_runs
def test_what_retention_took_of_one_topic_is_named_and_the_others_lose_nothing(topics, run_once, engine, ask, name):
    a, b, _ = topics
    a.create().send(1, 2)
    b.create().send(3)
    table = table_of(name, Kafka((a.name, b.name)))
    run_once(table)
    messages_before = a.messages()
    a.send(4, 5)
    b.send(6)
    a.delete_before(3)
    lost_range = f"topic '{a.name}' partition 0 from offset 2 to before 3"
    assert source_health.look(engine, Catalog({table.name: table}))[table.flow].expires.startswith(
        f"Kafka deletes unread records of topic '{a.name}'"
    )
    with pytest.raises(FlowBroken, match=f"{lost_range}.: action accept data loss"):
        run_once(table)
    ask(Action.ACCEPT_DATA_LOSS, table)
    run_once(table)
    assert_holds(table, a, b, deleted_messages=tuple(messages_before))
    assert lost(engine, table) == [(a.name, 0, 2, 3)]


@only_in_full_runs
def test_a_topic_that_left_the_list_is_refused_and_nothing_of_the_others_is_lost(topics, run_once, name):
    a, b, _ = topics
    a.create().send(1)
    b.create().send(2)
    table = table_of(name, Kafka((a.name, b.name)))
    run_once(table)
    a.send(3)
    with pytest.raises(FlowBroken, match="restore the declaration") as refusal:
        run_once(replace(table, source=Kafka(a.name)))
    assert refusal.value.error == "CHECKPOINT_OF_ANOTHER_DEFINITION"
    run_once(table)
    assert_holds(table, a, b)


def test_headers_arrive_in_order_and_the_id_of_a_registrys_header_beside_the_untouched_value(topics, run_once, name):
    topic, *_ = topics
    topic.create()
    values = {
        b"\0\0\0\0\x07body": 7,
        b"\0\x7f\xff\xff\xff": 2**31 - 1,
        b"\0\xff\xff\xff\xffbody": None,
        b"\0\0\0\0": None,
        b"\x01\0\0\0\x07body": None,
        b"": None,
        None: None,
    }
    headers = [("b", b"1"), ("a", None), ("b", b""), ("b", b"2")]
    producer = Producer({"bootstrap.servers": topic.servers, "log_level": 0})
    for value in values:
        producer.produce(topic.name, value, headers=headers)
    assert producer.flush(30) == 0
    table = table_of(name, Kafka(topic.name, schema_ids=True), schema=KAFKA_SCHEMA_WITH_IDS)
    run_once(table)
    rows = sorted(rows_of(table.name), key=lambda row: row["offset"])
    assert [(row["value"], row["schema_id"]) for row in rows] == list(values.items())
    assert [[(header["key"], header["value"]) for header in row["headers"]] for row in rows] == [headers] * len(values)
