"""The Kafka cluster of the platform on this machine: a broker of its own, or brokers that run elsewhere."""

from collections.abc import Iterable
from pathlib import Path

from confluent_kafka.admin import AdminClient

from include.errors import UsageError
from include.kafka import cluster
from include.kafka.broker import Topics
from include.local.broker import HOST, Broker, create
from include.settings import Settings

PARTITIONS = 3


def own_broker(config: Settings, java_home: Path) -> Broker | None:
    """The broker that `make up` starts; None if SLUICE_KAFKA_CONFIG says how to reach others. Raises UsageError."""
    if "" in config.kafka_files:
        return None
    host, _, port = config.kafka.partition(":")
    if host not in (HOST, "localhost") or not port.isdigit():
        raise UsageError(
            f"SLUICE_KAFKA is {config.kafka}, and `make up` starts a broker here: set {HOST}:PORT, or name the "
            f"properties file of a cluster that runs already in SLUICE_KAFKA_CONFIG"
        )
    return Broker(config.home / "kafka", config.jars, java_home, int(port), int(port) + 1)


def create_topics(names: Iterable[str]) -> str:
    """Create the topics that the default cluster lacks. Returns the cluster's address.

    Raises Unreachable and AccessRefused if it does not answer, and SetupError if it creates none.
    """
    kafka = cluster.named(None)
    existing = Topics(kafka).partitions()
    admin = kafka.client(AdminClient)
    for name in sorted(set(names) - existing.keys()):
        create(admin, kafka.servers, name, PARTITIONS)
    return kafka.servers
