"""Compares the page view tables from Kafka to gold with plain Python."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from include import catalog
from include.examples.events import Event
from include.examples.views import views
from include.spec import Delta, Kafka, Table
from tests.support import expected
from tests.support.expected import views as expected_views
from tests.support.flows import rows_of
from tests.support.topic import Topic


@pytest.fixture
def tables(broker: str, name: str) -> tuple[Topic, Table, Table, Table]:
    """A new topic, and the page view tables under the name of the test."""
    topic = Topic(broker).create(3)
    example_tables = catalog.load().tables
    return (
        topic,
        replace(example_tables["bronze.page_views"], name=f"bronze.{name}", source=Kafka(topic.name, schema_ids=True)),
        replace(example_tables["silver.page_views"], name=f"silver.{name}", source=Delta(f"bronze.{name}")),
        replace(example_tables["gold.views_by_hour"], name=f"gold.{name}", source=Delta(f"silver.{name}")),
    )


def five_minutes_of_views(seed: int) -> list[Event]:
    return list(views(seed, 1_500, datetime(2026, 3, 1, 12, 5 * seed, tzinfo=UTC), 5))


def send(topic: Topic, events: list[Event]) -> None:
    producer = Producer({"bootstrap.servers": topic.servers, "log_level": 0, "enable.idempotence": True})
    for view in events:
        producer.produce(topic.name, view.value, view.key)
        producer.poll(0)
    assert producer.flush(30) == 0


def test_views_by_hour_are_exactly_what_plain_python_makes_of_the_same_messages(tables, run_once):
    topic, bronze, silver, gold = tables
    # The second batch repeats views of the first batch, so only the table can reveal them.
    for events in (five_minutes_of_views(1), five_minutes_of_views(1)[-300:] + five_minutes_of_views(2)):
        send(topic, events)
        run_once(bronze, silver, gold)
    messages = expected.messages(topic.servers, topic.name)
    expected_silver, expected_quarantine = expected_views.silver_and_quarantine(messages)
    bronze_rows = rows_of(bronze.name)
    assert sorted((row["partition"], row["offset"], row["value"]) for row in bronze_rows) == sorted(
        (message.partition, message.offset, message.value) for message in messages
    )
    columns = (*expected_views.FIELDS, "partition", "offset")
    silver_rows = [{column: row[column] for column in columns} for row in rows_of(silver.name)]
    assert len(silver_rows) == len(expected_silver)
    assert {(row["view_id"], row["time"]): row for row in silver_rows} == expected_silver
    quarantine_offsets = [(row["partition"], row["offset"]) for row in rows_of(silver.quarantine)]
    assert len(quarantine_offsets) == len(expected_quarantine)
    assert set(quarantine_offsets) == expected_quarantine
    gold_rows = {(row["document_id"], row["hour"]): (row["views"], row["users"]) for row in rows_of(gold.name)}
    assert gold_rows == expected_views.gold(expected_silver)
