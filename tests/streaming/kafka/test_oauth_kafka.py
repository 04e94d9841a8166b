"""Clusters whose clients show tokens of an identity provider (SASL OAUTHBEARER) are read like any other."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import javaproperties
import pytest

from include.catalog import Catalog
from include.engine.fast_path.table_layout import NotSupported
from include.engine.fast_path.topic_reader import TopicReader
from include.errors import FlowBroken, SluiceError, Unreachable
from include.kafka.broker import Topics
from include.kafka.cluster import AccessRefused, Cluster
from include.local import java
from include.monitoring import consumer_groups, lag
from include.monitoring.consumer_groups import Mirrored
from include.settings import settings
from include.spec import Flow, Kafka
from tests.conftest import free_port
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.kafka.oauth_broker import IdentityProvider, OAuthBroker
from tests.support.secrets_search import files_with
from tests.support.topic import Topic
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def oauth_broker(tmp_path_factory) -> Iterator[OAuthBroker]:
    directory = tmp_path_factory.mktemp("oauth")
    with IdentityProvider() as provider:
        broker = OAuthBroker(
            directory, settings().jars, java.home(), free_port(), free_port(), oauth_port=free_port(), provider=provider
        )
        broker.prepare()
        with (directory / "broker.log").open("ab") as log:
            process = subprocess.Popen(broker.command(), stdout=log, stderr=subprocess.STDOUT)
        try:
            broker.wait(60)
            yield broker
        finally:
            process.kill()
            process.wait()


def test_an_identity_provider_that_is_away_is_an_outage_and_one_that_refuses_is_not(tmp_path: Path):
    def error(provider: IdentityProvider, secret: str) -> SluiceError:
        broker = OAuthBroker(tmp_path, tmp_path, tmp_path, 0, 0, oauth_port=free_port(), provider=provider)
        properties = javaproperties.loads(broker.properties(secret))
        cluster = Cluster("eu", properties["bootstrap.servers"], tmp_path / "eu.properties", properties)
        with pytest.raises(SluiceError) as raised:
            Topics(cluster, timeout_seconds=1).cluster_id()
        return raised.value

    with IdentityProvider() as provider:
        refusal = error(provider, "Hush-2")
    outage = error(provider, provider.secret)
    assert (type(refusal), type(outage)) == (AccessRefused, Unreachable)
    assert "invalid_client" in str(refusal) and "Could not connect to server" in str(outage)
    assert "Hush-2" not in str(refusal)


@pytest.fixture
def declare(tmp_path: Path, monkeypatch):
    """`declare(properties)` writes the properties file of the cluster `eu`."""

    def write(properties: str) -> None:
        file = tmp_path / "eu.properties"
        file.write_text(properties)
        monkeypatch.setenv("SLUICE_KAFKA_EU_CONFIG", str(file))
        settings.cache_clear()

    yield write
    monkeypatch.undo()
    settings.cache_clear()


@only_in_full_runs
def test_a_flow_its_lag_and_its_consumer_group_work_with_tokens(oauth_broker, declare, name, run_once, monkeypatch):
    provider = oauth_broker.provider
    topic = Topic(oauth_broker.address).create(2).send(*range(4))
    declare(oauth_broker.properties(provider.secret))
    bronze = Flow(name=f"bronze.{name}", comment="", source=Kafka(topic.name, cluster="eu"))
    run_once(bronze)
    topic.send(4, 5)
    with monkeypatch.context() as patch:
        patch.setattr(TopicReader, "read", lambda *_: (_ for _ in ()).throw(NotSupported("Spark shall read it")))
        run_once(bronze)
    assert sorted(int(row["value"]) for row in rows_of(bronze.name)) == list(range(6))
    assert len(provider.given) == 2, "librdkafka and Java have each got a token"
    topic.send(6)
    assert lag.measure([bronze], timeout_seconds=10)[bronze.flow].words == "1 records of eu"
    mirrored = Mirrored(f"sluice.{bronze.flow}")
    wait_until(lambda: consumer_groups.mirror(Catalog({bronze.name: bronze})) == {bronze.flow: mirrored}, 60)
    assert files_with([provider.secret], settings().home) == set()


@only_in_full_runs
def test_a_wrong_secret_is_named(oauth_broker, declare, name, run_once):
    declare(oauth_broker.properties("Hush-2"))
    bronze = Flow(
        name=f"bronze.{name}",
        comment="",
        source=Kafka(Topic(oauth_broker.address).create().name, cluster="eu"),
    )
    with pytest.raises(FlowBroken, match="does not let it in") as refusal:
        run_once(bronze)
    assert refusal.value.error == "KAFKA_ACCESS"
    assert "Hush-2" not in str(refusal.value)
