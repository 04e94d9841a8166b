"""Airflow connections of Kafka clusters become files that every process can use, and nobody else can read."""

import json
import stat

import pytest

from include.airflow.supervisor import kafka_connections
from include.catalog import Catalog
from include.kafka import cluster
from include.settings import settings
from include.spec import Kafka, Table

SECRET = 'a "b" \\ = ; ä'


@pytest.fixture
def store(tmp_path, monkeypatch):
    """`store("eu", connection)` stores the connection as the supervisor does for a table of that cluster."""

    def run(name: str, connection: dict | None) -> None:
        if connection is None:
            monkeypatch.delenv(f"AIRFLOW_CONN_KAFKA_{name.upper()}", raising=False)
        else:
            monkeypatch.setenv(f"AIRFLOW_CONN_KAFKA_{name.upper()}", json.dumps({"conn_type": "kafka", **connection}))
        table = Table(name="bronze.clicks", comment="", source=Kafka("clicks", cluster=name))
        kafka_connections.store(Catalog({table.name: table}))

    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    settings.cache_clear()
    yield run
    monkeypatch.undo()
    settings.cache_clear()


def test_a_user_and_password_reach_both_clients_and_the_file_is_for_the_platform_alone(store):
    extra = {"sasl.mechanism": "SCRAM-SHA-512", "ssl.truststore.type": "PEM", "ssl.truststore.location": "/ca.pem"}
    store("eu", {"host": "one:1,two:2", "login": "sluice", "password": SECRET, "extra": extra})
    eu = cluster.named("eu")
    assert eu.servers == "one:1,two:2"
    assert cluster.settings_of(eu._properties) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "sluice",
        "sasl.password": SECRET,
        "ssl.ca.location": "/ca.pem",
    }
    assert SECRET not in repr(eu)
    assert f"${{file:{eu.file}:sasl.jaas.config}}" == eu.spark_options()["kafka.sasl.jaas.config"]
    assert not any("sluice" in value or SECRET in value for value in eu.spark_options().values())
    assert [stat.S_IMODE(path.stat().st_mode) for path in (eu.file, eu.file.parent)] == [0o600, 0o700]
    written_at = eu.file.stat().st_mtime_ns
    store("eu", {"host": "one:1,two:2", "login": "sluice", "password": SECRET, "extra": extra})
    assert eu.file.stat().st_mtime_ns == written_at
    store("eu", {"host": "one", "port": 1, "login": "sluice", "password": "new", "extra": extra})
    assert cluster.settings_of(cluster.named("eu")._properties)["sasl.password"] == "new"
    assert cluster.named("eu").servers == "one:1"


def test_a_connection_that_is_gone_leaves_the_file_and_one_that_never_was_is_named(store):
    store("eu", {"host": "one:1"})
    store("eu", None)
    assert cluster.named("eu").servers == "one:1"
    store("us", None)
    with pytest.raises(cluster.AccessRefused, match="add the Airflow connection kafka_us"):
        cluster.named("us")


def test_a_file_that_a_variable_names_wins_over_the_connection(store, tmp_path, monkeypatch):
    (tmp_path / "eu.properties").write_text("bootstrap.servers=mine:1\n")
    monkeypatch.setenv("SLUICE_KAFKA_EU_CONFIG", str(tmp_path / "eu.properties"))
    settings.cache_clear()
    store("eu", {"host": "one:1"})
    assert cluster.named("eu").servers == "mine:1"
    assert not cluster.connection_file("eu").exists()
