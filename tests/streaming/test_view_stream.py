"""Page views from Kafka to gold, held against plain Python."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from include import catalog
from include.examples.events import Event
from include.examples.views import views
from include.spec import Delta, Kafka, Table
from tests.support import expected, expected_views
from tests.support.flows import rows_of
from tests.support.topic import Topic


@pytest.fixture
def tables(broker: str, name: str) -> tuple[Topic, Table, Table, Table]:
    """The tables of page views under names of their own, with a topic of their own."""
    topic = Topic(broker).create(3)
    declared = catalog.load().tables
    return (
        topic,
        replace(declared["bronze.page_views"], name=f"bronze.{name}", source=Kafka(topic.name, schema_ids=True)),
        replace(declared["silver.page_views"], name=f"silver.{name}", source=Delta(f"bronze.{name}")),
        replace(declared["gold.views_by_hour"], name=f"gold.{name}", source=Delta(f"silver.{name}")),
    )


def reported(seed: int) -> list[Event]:
    """Five minutes of views."""
    return list(views(seed, 1_500, datetime(2026, 3, 1, 12, 5 * seed, tzinfo=UTC), 5))


def send(topic: Topic, events: list[Event]) -> None:
    producer = Producer({"bootstrap.servers": topic.servers, "log_level": 0, "enable.idempotence": True})
    for view in events:
        producer.produce(topic.name, view.value, view.key)
        producer.poll(0)
    assert producer.flush(30) == 0


def test_views_by_hour_are_exactly_what_plain_python_makes_of_the_same_messages(tables, run_once):
    topic, bronze, silver, gold = tables
    # What the second batch repeats of the first one's, it finds in the table only.
    for events in (reported(1), reported(1)[-300:] + reported(2)):
        send(topic, events)
        run_once(bronze, silver, gold)
    messages = expected.messages(topic.servers, topic.name)
    kept, broken = expected_views.silver_and_quarantine(messages)
    held = rows_of(bronze.name)
    assert sorted((row["partition"], row["offset"], row["value"]) for row in held) == sorted(
        (one.partition, one.offset, one.value) for one in messages
    )
    columns = (*expected_views.FIELDS, "partition", "offset")
    stored = [{column: row[column] for column in columns} for row in rows_of(silver.name)]
    assert len(stored) == len(kept)
    assert {(row["view_id"], row["time"]): row for row in stored} == kept
    quarantined = [(row["partition"], row["offset"]) for row in rows_of(silver.quarantine)]
    assert len(quarantined) == len(broken)
    assert set(quarantined) == broken
    by_hour = {(row["document_id"], row["hour"]): (row["views"], row["users"]) for row in rows_of(gold.name)}
    assert by_hour == expected_views.gold(kept)
