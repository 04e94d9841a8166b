"""Kafka's own tools show the position of a flow as a consumer group of a real broker."""

import time

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from include.catalog import Catalog
from include.control import platform
from include.control.store import database
from include.monitoring import consumer_groups
from include.monitoring.consumer_groups import Mirrored
from include.settings import settings
from include.spec import Delta, Flow, Kafka, Table
from tests.support.lake import checkpoint, delta_offset
from tests.support.topic import Topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("home")


def catalog_of(*tables: Table) -> Catalog:
    return Catalog({table.name: table for table in tables})


def committed_offsets(servers: str, group: str) -> dict[tuple[str, int], int]:
    """The committed offsets of all topics that exist."""
    topics = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=30).topics.values()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    # An AdminClient would end the process where the group has no coordinator.
    committed = consumer.committed([TopicPartition(topic.topic, id) for topic in topics for id in topic.partitions], 30)
    consumer.close()
    return {(found.topic, found.partition): found.offset for found in committed if found.offset >= 0}


def test_a_group_shows_what_the_checkpoint_says_and_follows_it(broker):
    clicks, views = Topic(broker).create(partitions=2).send(*range(8)), Topic(broker).create().send(*range(3))
    flow = Flow(name=f"bronze.{clicks.name}", source=Kafka((clicks.name, views.name)), comment="")
    silver = Flow(name=f"silver.{clicks.name}", source=Delta(flow.name), comment="")
    checkpoint(flow.flow, {clicks.name: {"0": 3, "1": 0}, views.name: {"0": 1}})
    checkpoint(silver.flow, delta_offset(4))
    group = f"sluice.{flow.flow}"
    # For the first group, the broker creates the topic in which it stores all groups.
    wait_until(lambda: consumer_groups.mirror(catalog_of(flow, silver)) == {flow.flow: Mirrored(group)}, 60)
    assert committed_offsets(broker, group) == {(clicks.name, 0): 3, (clicks.name, 1): 0, (views.name, 0): 1}
    end_offsets = [{clicks.name: {"0": 3, "1": 0}}, {clicks.name: {"0": 4, "1": 2}}, {clicks.name: {"0": 4, "1": 4}}]
    checkpoint(flow.flow, *end_offsets, is_planned=True)
    consumer_groups.mirror(catalog_of(flow))
    assert committed_offsets(broker, group)[clicks.name, 1] == 2, "a batch that is planned was not read yet"
    checkpoint(flow.flow, {clicks.name: {"0": 1, "1": 1}}, generation=2)
    consumer_groups.mirror(catalog_of(flow))
    assert committed_offsets(broker, group)[clicks.name, 0] == 1, "a flow that was rewound is seen to be"


def test_two_platforms_at_one_broker_have_a_group_each(broker, monkeypatch, tmp_path):
    topic = Topic(broker).create().send(*range(8))
    flow = Flow(name=f"bronze.{topic.name}", source=Kafka(topic.name), comment="")
    group = f"sluice.{flow.flow}"
    # As an earlier release left it, without a note of whose it is.
    request = ConsumerGroupTopicPartitions(group, [TopicPartition(topic.name, 0, 1)])
    wait_until(lambda: is_taken(topic.admin, request), 60)
    checkpoint(flow.flow, {topic.name: {"0": 3}})
    assert consumer_groups.mirror(catalog_of(flow)) == {flow.flow: Mirrored(group)}
    monkeypatch.setenv("SLUICE_CONTROL_URL", f"sqlite:///{tmp_path / 'other.db'}")
    settings.cache_clear()
    checkpoint(flow.flow, {topic.name: {"0": 3}}, {topic.name: {"0": 7}})
    [other] = consumer_groups.mirror(catalog_of(flow)).values()
    assert other == Mirrored(f"{group}.{platform.identity(database.connect(settings().control_url))}")
    assert consumer_groups.mirror(catalog_of(flow)) == {flow.flow: other}
    assert committed_offsets(broker, group) == {(topic.name, 0): 3}
    assert committed_offsets(broker, other.group) == {(topic.name, 0): 7}


def is_taken(admin: AdminClient, request: ConsumerGroupTopicPartitions) -> bool:
    """Whether the broker took these offsets. It creates the topic for groups at the first request."""
    try:
        admin.alter_consumer_group_offsets([request])[request.group_id].result(30)
        return True
    except KafkaException:
        return False


def test_a_flow_that_has_read_nothing_has_no_group_and_a_damaged_one_keeps_no_other_from_its_own(broker):
    topic = Topic(broker).create().send(*range(5))
    names = ("fresh", "damaged", "good")
    fresh_flow, damaged_flow, good_flow = (
        Flow(name=f"bronze.{topic.name}_{name}", source=Kafka(topic.name), comment="") for name in names
    )
    (checkpoint(damaged_flow.flow, {topic.name: {"0": 2}}) / "offsets" / "0").write_text("")
    checkpoint(good_flow.flow, {topic.name: {"0": 2}})
    results = consumer_groups.mirror(catalog_of(fresh_flow, damaged_flow, good_flow))
    assert results.keys() == {damaged_flow.flow, good_flow.flow}
    assert "cut short" in results[damaged_flow.flow].refusal
    assert committed_offsets(broker, f"sluice.{good_flow.flow}") == {(topic.name, 0): 2}
    assert committed_offsets(broker, f"sluice.{fresh_flow.flow}") == {}


def test_a_broker_that_hangs_costs_all_flows_together_one_timeout(silent_port, monkeypatch):
    monkeypatch.setenv("SLUICE_KAFKA", f"127.0.0.1:{silent_port}")
    settings.cache_clear()
    flows = [Flow(name=f"bronze.b{number}", source=Kafka("t"), comment="") for number in range(5)]
    for flow in flows:
        checkpoint(flow.flow, {"t": {"0": 1}})
    started_at = time.monotonic()
    results = consumer_groups.mirror(catalog_of(*flows), timeout_seconds=1)
    assert time.monotonic() - started_at < 3
    assert len(results) == 5
    assert all("took no offsets" in result.refusal for result in results.values())
