"""Where each Kafka cluster is, and how clients prove to it who they are.

A properties file describes a cluster, as Kafka's own tools take it (`--command-config`). Spark gets the path of that
file and the names of its properties: Kafka's client reads the values itself, where it runs. No secret is in an option.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import KafkaException

from include.errors import FlowBroken
from include.readers.kafka import java_properties, librdkafka
from include.settings import cluster_variable, settings
from include.spec import Kafka

# Properties that say how to reach a broker. Others, such as `acks`, say how a client behaves, which is for Sluice.
TAKEN = ("security.", "sasl.", "ssl.", "client.dns.lookup")
# Kafka's client resolves `${file:PATH:PROPERTY}` by this provider.
PROVIDER = {
    "config.providers": "file",
    "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
}
Client = TypeVar("Client")


class AccessRefused(FlowBroken):
    """A cluster cannot be reached as its properties file says; only a person can correct that."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence, "KAFKA_ACCESS")


@dataclass(frozen=True)
class Cluster:
    """name: as a table file gives it; None for the cluster of `SLUICE_KAFKA`. servers: bootstrap servers.

    file: its properties file; None for a cluster without encryption and passwords.
    """

    name: str | None
    servers: str
    file: Path | None = None
    _properties: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.servers} (cluster '{self.name}')" if self.name else self.servers

    @property
    def setting(self) -> str:
        """What says how to reach it, with its value."""
        if not self.file:
            return f"SLUICE_KAFKA is {self.servers}"
        if self.name and self.file == connection_file(self.name):
            return f"the Airflow connection kafka_{self.name} is written to {self.file}"
        return f"{cluster_variable(self.name)} is {self.file}"

    def java_properties(self) -> dict[str, str]:
        """Returns the properties of Kafka's own clients, in Java. They contain no value of the properties file."""
        servers = {"bootstrap.servers": self.servers}
        taken = [name for name in self._properties if name.startswith(TAKEN)]
        if not taken:
            return servers
        return servers | PROVIDER | {name: f"${{file:{self.file}:{name}}}" for name in taken}

    def spark_options(self) -> dict[str, str]:
        """Returns the options of Spark's Kafka source: `java_properties`, each with a prefix."""
        return {f"kafka.{name}": value for name, value in self.java_properties().items()}

    def client(self, make: Callable[[dict[str, Any]], Client], behaviour: Mapping[str, Any] | None = None) -> Client:
        """Makes a client of confluent-kafka. behaviour: its settings beside those of access. Raises AccessRefused."""
        try:
            access = librdkafka.settings_of(self._properties)
            return make({"bootstrap.servers": self.servers, "log_level": 0, **access, **(behaviour or {})})
        except (librdkafka.NotTranslatable, KafkaException) as error:
            reason = error.args[0].str() if isinstance(error, KafkaException) else str(error)
            raise AccessRefused(f"{self.setting}, whose properties cannot be used ({reason}): correct them") from error

    def refusal(self, reason: str) -> AccessRefused:
        """Returns the error for brokers that refuse connections. reason: what librdkafka says about it."""
        return AccessRefused(
            f"{self.setting}, and the broker at {self.servers} does not let it in ({reason}): correct its password or "
            f"certificate"
        )


def of(source: Kafka) -> Cluster:
    """Returns the cluster of a source. Raises AccessRefused."""
    return named(source.cluster)


def named(name: str | None) -> Cluster:
    """Returns the cluster of this name, None for the default one. Raises AccessRefused."""
    config = settings()
    file = config.kafka_files.get(name or "")
    if name and not file:
        file = connection_file(name)
        if not file.exists():
            known = ", ".join(sorted(filter(None, config.kafka_files))) or "none"
            raise AccessRefused(
                f"Kafka cluster '{name}' is unknown (known: {known}): set {cluster_variable(name)} to its properties "
                f"file, add the Airflow connection kafka_{name}, or correct cluster= in the table file"
            )
    if not file:
        return Cluster(None, config.kafka)
    properties = _read(name, file)
    servers = (not name and config.kafka) or properties.get("bootstrap.servers")
    if not servers:
        raise AccessRefused(
            f"{cluster_variable(name)} is {file}, which has no bootstrap.servers: add the line bootstrap.servers=..."
        )
    return Cluster(name, servers, file, properties)


def connection_file(name: str) -> Path:
    """The properties file that the supervisor writes from the Airflow connection `kafka_<name>`."""
    return settings().home / "kafka-clusters" / f"{name}.properties"


def _read(name: str | None, file: Path) -> dict[str, str]:
    if set(str(file)) & set(":}"):
        raise AccessRefused(
            f"{cluster_variable(name)} is {file}, and Kafka's client reads no path with : or }}: move it"
        )
    try:
        return java_properties.parse(file.read_text("iso-8859-1"))
    except OSError as error:
        raise AccessRefused(
            f"{cluster_variable(name)} is {file}, which cannot be read ({error.strerror}): correct the setting, or the "
            f"permissions of that file"
        ) from error
