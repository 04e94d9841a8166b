"""Kafka's own tools see how far a flow is: real groups on a real broker."""

import time

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from include.catalog import Catalog
from include.monitoring import consumer_groups
from include.settings import settings
from include.spec import Delta, Kafka, Table
from tests.support.lake import checkpoint, delta_offset
from tests.support.topic import Topic
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("home")


def catalog_of(*tables: Table) -> Catalog:
    return Catalog({table.name: table for table in tables})


def committed(servers: str, group: str) -> dict[tuple[str, int], int]:
    """As `kafka-consumer-groups.sh --describe` asks for it."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
    return {(one.topic, one.partition): one.offset for one in asked.result(30).topic_partitions}


def test_a_group_shows_what_the_checkpoint_says_and_follows_it(broker):
    one, other = Topic(broker).create(partitions=2).send(*range(8)), Topic(broker).create().send(*range(3))
    flow = Table(name=f"bronze.{one.name}", source=Kafka((one.name, other.name)), comment="")
    silver = Table(name=f"silver.{one.name}", source=Delta(flow.name), comment="")
    checkpoint(flow.flow, {one.name: {"0": 3, "1": 0}, other.name: {"0": 1}})
    checkpoint(silver.flow, delta_offset(4))
    # The first group of all makes the broker create the topic in which it keeps them.
    wait_until(lambda: consumer_groups.mirror(catalog_of(flow, silver)) == {flow.flow: None}, 60)
    group = f"sluice.{flow.flow}"
    assert committed(broker, group) == {(one.name, 0): 3, (one.name, 1): 0, (other.name, 0): 1}
    ends = [{one.name: {"0": 3, "1": 0}}, {one.name: {"0": 4, "1": 2}}, {one.name: {"0": 4, "1": 4}}]
    checkpoint(flow.flow, *ends, is_planned=True)
    consumer_groups.mirror(catalog_of(flow))
    assert committed(broker, group)[one.name, 1] == 2, "a batch that is planned was not read yet"
    checkpoint(flow.flow, {one.name: {"0": 1, "1": 1}}, generation=2)
    consumer_groups.mirror(catalog_of(flow))
    assert committed(broker, group)[one.name, 0] == 1, "a flow that was rewound is seen to be"


def test_a_flow_that_has_read_nothing_has_no_group_and_a_damaged_one_keeps_no_other_from_its_own(broker):
    topic = Topic(broker).create().send(*range(5))
    names = ("fresh", "damaged", "good")
    fresh, damaged, good = (
        Table(name=f"bronze.{topic.name}_{name}", source=Kafka(topic.name), comment="") for name in names
    )
    (checkpoint(damaged.flow, {topic.name: {"0": 2}}) / "offsets" / "0").write_text("")
    checkpoint(good.flow, {topic.name: {"0": 2}})
    told = consumer_groups.mirror(catalog_of(fresh, damaged, good))
    assert told.keys() == {damaged.flow, good.flow}
    assert "cut short" in told[damaged.flow]
    assert committed(broker, f"sluice.{good.flow}") == {(topic.name, 0): 2}
    assert committed(broker, f"sluice.{fresh.flow}") == {}


def test_a_broker_that_hangs_costs_all_flows_together_one_timeout(silent_port, monkeypatch):
    monkeypatch.setenv("SLUICE_KAFKA", f"127.0.0.1:{silent_port}")
    settings.cache_clear()
    flows = [Table(name=f"bronze.b{number}", source=Kafka("t"), comment="") for number in range(5)]
    for flow in flows:
        checkpoint(flow.flow, {"t": {"0": 1}})
    began = time.monotonic()
    told = consumer_groups.mirror(catalog_of(*flows), timeout_seconds=1)
    assert time.monotonic() - began < 3
    assert len(told) == 5
    assert all("took no offsets" in why_not for why_not in told.values())
