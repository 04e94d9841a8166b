"""Where each Kafka cluster is, how clients prove to it who they are, and why it refuses them."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import javaproperties
from confluent_kafka import KafkaError, KafkaException

from include.errors import FlowBroken
from include.settings import cluster_variable, settings
from include.spec import Kafka

# What a user name and password, or a certificate, prove; other mechanisms need code that librdkafka does not have.
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORD_MECHANISMS, "OAUTHBEARER")
SAME = ("security.protocol", "sasl.mechanism", "client.dns.lookup", "sasl.oauthbearer.token.endpoint.url")
# By store: its PEM text in the file, and librdkafka's names for that text and for a PEM file.
TRUSTSTORE = "ssl.truststore"
KEYSTORE = "ssl.keystore"
JAAS_OPTION = re.compile(r"""(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;]+)""")
OAUTH_OPTIONS = {
    "clientId": "sasl.oauthbearer.client.id",
    "clientSecret": "sasl.oauthbearer.client.secret",
    "scope": "sasl.oauthbearer.scope",
}


class NotTranslatable(ValueError):
    """librdkafka has nothing like a property. The message names it and the remedy, and never contains a secret."""


def settings_of(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings by which librdkafka reaches the same brokers with the same rights.

    Properties that say how a client behaves, not how it reaches a broker, are left out. Raises NotTranslatable.
    """
    settings = {name: properties[name] for name in SAME if name in properties}
    protocol = properties.get("security.protocol", "PLAINTEXT").upper()
    if protocol.startswith("SASL"):
        settings |= _sasl(properties)
    if protocol.endswith("SSL"):
        settings |= _trust(properties) | _own_certificate(properties)
    if "ssl.endpoint.identification.algorithm" in properties:
        # Java switches the check of the host name off by an empty value.
        value = properties["ssl.endpoint.identification.algorithm"]
        settings["ssl.endpoint.identification.algorithm"] = value.lower() or "none"
    return settings


def _sasl(properties: Mapping[str, str]) -> dict[str, str]:
    mechanism = properties.get("sasl.mechanism", "GSSAPI")
    if mechanism not in MECHANISMS:
        raise NotTranslatable(
            f"sasl.mechanism is {mechanism}, which the client of lag, offsets and consumer groups (librdkafka) has "
            f"not: set it to one of {', '.join(MECHANISMS)}"
        )
    options = _jaas_options(properties.get("sasl.jaas.config", ""))
    if mechanism not in PASSWORD_MECHANISMS:
        given = {setting: options[name] for name, setting in OAUTH_OPTIONS.items() if name in options}
        return {"sasl.oauthbearer.method": "oidc", **given}
    if missing := [name for name in ("username", "password") if not options.get(name)]:
        raise NotTranslatable(
            f'sasl.jaas.config has no {missing[0]}: write {missing[0]}="..." behind the login module, as Kafka\'s '
            f"documentation of {mechanism} shows"
        )
    return {"sasl.username": options["username"], "sasl.password": options["password"]}


def _jaas_options(jaas: str) -> dict[str, str]:
    return {
        name: re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] in "\"'" else value
        for name, value in JAAS_OPTION.findall(jaas)
    }


def _trust(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns whom the client trusts: without a truststore, whom the system trusts."""
    if certificates := properties.get("ssl.truststore.certificates"):
        return {"ssl.ca.pem": certificates}
    if location := properties.get("ssl.truststore.location"):
        _require(properties, TRUSTSTORE, ("PEM",))
        return {"ssl.ca.location": location}
    return {}


def _own_certificate(properties: Mapping[str, str]) -> dict[str, str]:
    password = properties.get("ssl.key.password") or ""
    settings = {"ssl.key.password": password} if password else {}
    if chain := properties.get("ssl.keystore.certificate.chain"):
        return {"ssl.certificate.pem": chain, "ssl.key.pem": properties.get("ssl.keystore.key", ""), **settings}
    location = properties.get("ssl.keystore.location")
    if not location:
        return {}
    if _require(properties, KEYSTORE, ("PEM", "PKCS12")) == "PKCS12":
        return {"ssl.keystore.location": location, "ssl.keystore.password": properties.get("ssl.keystore.password", "")}
    # The same file holds the private key and the certificates.
    return {"ssl.certificate.location": location, "ssl.key.location": location, **settings}


def _require(properties: Mapping[str, str], store: str, supported: tuple[str, ...]) -> str:
    kind = properties.get(f"{store}.type", "JKS").upper()
    if kind not in supported:
        raise NotTranslatable(
            f"{store}.type is {kind}, which the client of lag, offsets and consumer groups (librdkafka) cannot read: "
            f"convert the file to {' or '.join(supported)}, and name that"
        )
    return kind


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
            access = settings_of(self._properties)
            return make({"bootstrap.servers": self.servers, "log_level": 0, **access, **(behaviour or {})})
        except (NotTranslatable, KafkaException) as error:
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
        return dict(javaproperties.loads(file.read_text("iso-8859-1")))
    except OSError as error:
        raise AccessRefused(
            f"{cluster_variable(name)} is {file}, which cannot be read ({error.strerror}): correct the setting, or the "
            f"permissions of that file"
        ) from error
    except javaproperties.InvalidUEscapeError as error:
        raise AccessRefused(
            f"{cluster_variable(name)} is {file}, where '{error.escape}' is no character: write 4 hexadecimal digits"
        ) from error


REFUSALS = (KafkaError._AUTHENTICATION, KafkaError._SSL)
# With TLS 1.3, a broker refuses a client's certificate after the handshake, by closing the connection.
ALERT = "tls alert"
# An identity provider that answers sends JSON. Without an answer it is away, which passes.
NO_TOKEN, ANSWER = "Failed to acquire SASL OAUTHBEARER token", "{"
# The address in front of librdkafka's reasons, and the duration behind them.
ADDRESS, DURATION = re.compile(r"^\w+://\S+: "), re.compile(r" \(after \d+ms .*\)$")


class ConnectionErrors:
    """The `error_cb` of one client. reason: the newest error, in words; empty before the first."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.reason = ""
        self.refusal: AccessRefused | None = None

    def __call__(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return
        self.reason = DURATION.sub("", ADDRESS.sub("", error.str()))
        is_away = NO_TOKEN in self.reason and ANSWER not in self.reason
        is_refused = not is_away and (error.code() in REFUSALS or ALERT in self.reason)
        self.refusal = self._cluster.refusal(self.reason) if is_refused else None
