"""Clusters with TLS, passwords and client certificates are read like any other."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions

from include.catalog import Catalog
from include.engine.fast_path.features import NotSupported
from include.engine.fast_path.topic_reader import TopicReader
from include.ledger import verify
from include.local import java
from include.monitoring import consumer_groups, lag
from include.settings import settings
from include.spec import Kafka, Table
from tests.conftest import free_port
from tests.support.flows import rows_of
from tests.support.secure_broker import MECHANISMS, Authority, SecureBroker
from tests.support.topic import Topic
from tests.support.waiting import wait_until


@pytest.fixture(scope="session")
def secure_broker(tmp_path_factory) -> Iterator[SecureBroker]:
    directory = tmp_path_factory.mktemp("secure")
    authority = Authority(directory / "authority")
    broker = SecureBroker(
        directory / "broker", settings().jars, java.home(), free_port(), free_port(), authority=authority
    )
    broker.prepare()
    with (directory / "broker.log").open("ab") as log:
        process = subprocess.Popen(broker.command(), stdout=log, stderr=subprocess.STDOUT)
    broker.wait(60)
    broker.add_scram_user()
    yield broker
    process.kill()
    process.wait()


@pytest.fixture
def declare_cluster(tmp_path: Path, monkeypatch) -> Iterator[Callable[[str, str], None]]:
    """`declare_cluster("eu", properties)` adds a cluster to the settings of one test."""

    def declare(name: str, properties: str) -> None:
        file = tmp_path / f"{name}.properties"
        file.write_text(properties)
        monkeypatch.setenv(f"SLUICE_KAFKA_{name.upper()}_CONFIG", str(file))
        settings.cache_clear()

    yield declare
    monkeypatch.undo()
    settings.cache_clear()


def refuse(*_: object) -> None:
    raise NotSupported("Spark shall read it")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_flow_its_lag_its_ledger_and_its_consumer_group_work_with(
    mechanism, secure_broker, declare_cluster, spark, name, run_once, monkeypatch
):
    topic = Topic(secure_broker.address).create(2).send(*range(4))
    declare_cluster(mechanism.lower(), secure_broker.properties(mechanism))
    bronze = Table(name=f"bronze.{name}", comment="", source=Kafka(topic.name, cluster=mechanism.lower()))
    run_once(bronze)
    topic.send(4, 5)
    with monkeypatch.context() as patch:
        patch.setattr(TopicReader, "read", refuse)
        run_once(bronze)
    assert sorted(int(row["value"]) for row in rows_of(bronze.name)) == list(range(6))
    verification = verify.verify(bronze)
    assert (verification.batches, verification.notes) == (2, [])
    topic.send(6)
    flow_lag = lag.measure([bronze], timeout_seconds=10)[bronze.flow]
    assert flow_lag.words == f"1 records of {mechanism.lower()}"
    assert flow_lag.hours_until_loss is not None
    wait_until(lambda: consumer_groups.mirror(Catalog({bronze.name: bronze})) == {bronze.flow: None}, 60)
    group = ConsumerGroupTopicPartitions(consumer_groups.group(bronze.flow))
    offsets = topic.admin.list_consumer_group_offsets([group])[group.group_id].result(30).topic_partitions
    assert {offset.partition: offset.offset for offset in offsets} == {0: 3, 1: 3}
