"""A Kafka broker as companies run it: TLS, passwords and client certificates, each on a listener of its own."""

import datetime
import ipaddress
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from include.local.broker import HOST, Broker
from tests.conftest import free_port
from tests.support.topic import Topic

USER = "sluice"
# At the end of each password.
RANDOM_CHARACTERS = 16
# By mechanism, as the names of the broker's listeners.
MECHANISMS = ("PLAIN", "SCRAM", "MUTUAL")
LISTENERS = """
listeners=PLAINTEXT://{host}:{port},PLAIN://{host}:{plain},SCRAM://{host}:{scram},MUTUAL://{host}:{mutual},\
CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port},PLAIN://{host}:{plain},SCRAM://{host}:{scram},MUTUAL://{host}:{mutual}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAIN:SASL_SSL,SCRAM:SASL_SSL,MUTUAL:SSL
listener.name.plain.sasl.enabled.mechanisms=PLAIN
listener.name.plain.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_{user}="{plain_password}";
listener.name.scram.sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.scram.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.mutual.ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={truststore}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
# What the users of Sluice may do, as docs/guides/kafka-passwords.md lists it.
RIGHTS = (
    (ResourceType.TOPIC, ResourcePatternType.LITERAL, AclOperation.DESCRIBE),
    (ResourceType.TOPIC, ResourcePatternType.LITERAL, AclOperation.READ),
    (ResourceType.TOPIC, ResourcePatternType.LITERAL, AclOperation.DESCRIBE_CONFIGS),
    (ResourceType.GROUP, ResourcePatternType.PREFIXED, AclOperation.READ),
)


class Authority:
    """A certificate authority. directory: where it stores its files."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory, self._key = directory, ec.generate_private_key(ec.SECP256R1())
        self._name = _name("tests")
        self._certificate = self._sign(self._name, self._key.public_key(), is_authority=True)
        self.file = directory / "ca.pem"
        self.file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, days: int = 1) -> Path:
        """Returns a PEM file with a private key, its certificate and that of the authority. days: until expiry."""
        key = ec.generate_private_key(ec.SECP256R1())
        pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        certificate = self._sign(_name(name), key.public_key(), days=days)
        file = self._directory / f"{name}.pem"
        file.write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
            + certificate.public_bytes(pem)
            + self.file.read_bytes()
        )
        return file

    def issue_with_password(self, name: str, password: str) -> Path:
        """Returns the same as a PKCS12 file, which the password protects."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(_name(name), key.public_key())
        encryption = serialization.BestAvailableEncryption(password.encode())
        file = self._directory / f"{name}.p12"
        file.write_bytes(
            pkcs12.serialize_key_and_certificates(b"client", key, certificate, [self._certificate], encryption)
        )
        return file

    def _sign(self, subject: x509.Name, public_key, days: int = 1, is_authority: bool = False) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=2))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(HOST))]), critical=False)
        )
        return builder.sign(self._key, hashes.SHA256())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass(frozen=True)
class SecureBroker(Broker):
    """Its listener PLAINTEXT, at `address`, is for tests that prepare something. authority: whom its clients trust."""

    authority: Authority = None
    ports: dict[str, int] = field(default_factory=lambda: {name: free_port() for name in MECHANISMS})
    # A quote, a backslash and an equals sign are hard for files and parsers.
    passwords: dict[str, str] = field(
        default_factory=lambda: {name: f'{name}-"\\={secrets.token_hex(RANDOM_CHARACTERS // 2)}' for name in MECHANISMS}
    )

    def prepare(self) -> None:
        super().prepare()
        values = {name.lower(): port for name, port in self.ports.items()}
        listeners = LISTENERS.format(
            **values,
            host=HOST,
            port=self.port,
            controller=self.controller_port,
            user=USER,
            plain_password=_escaped(_escaped(self.passwords["PLAIN"])),
            keystore=self.authority.issue("broker"),
            truststore=self.authority.file,
        )
        with (self.directory / "server.properties").open("a") as file:
            file.write(listeners)

    def add_scram_user(self, password: str | None = None) -> None:
        """Sets the password of the user on the listener SCRAM."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        text = (password or self.passwords["SCRAM"]).encode()
        request = [UserScramCredentialUpsertion(USER, info, text)]
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        admin.alter_user_scram_credentials(request)[USER].result(30)

    def topic(self, partitions: int = 1) -> Topic:
        """A new topic, which everybody who logs in may read. It is at `address`, where no login is necessary."""
        topic = Topic(self.address).create(partitions)
        self.grant(topic.name)
        return topic

    def grant(self, topic: str) -> None:
        """Gives everybody who logs in the rights of a reader of the topic."""
        acls = [
            AclBinding(
                kind,
                topic if kind is ResourceType.TOPIC else "sluice",
                pattern,
                "User:*",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for kind, pattern, operation in RIGHTS
        ]
        # Held until the answers are there: a client that is garbage-collected cancels its requests.
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        for future in admin.create_acls(acls).values():
            future.result(30)

    def properties(self, mechanism: str, **changes: str | None) -> str:
        """The properties of a client, as its operators would write them. changes: with `_` for `.`; None leaves out."""
        password = self.passwords[mechanism]
        lines = {
            "bootstrap.servers": f"{HOST}:{self.ports[mechanism]}",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.file),
            # For Kafka's own tools, and not for Sluice.
            "acks": "all",
            "group.id": "tools",
        }
        if mechanism == "MUTUAL":
            lines |= {
                "security.protocol": "SSL",
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": str(self.authority.issue_with_password("client", password)),
                "ssl.keystore.password": _escaped(password),
            }
        else:
            login, name = ("scram.Scram", "SCRAM-SHA-512") if mechanism == "SCRAM" else ("plain.Plain", "PLAIN")
            jaas = (
                f'org.apache.kafka.common.security.{login}LoginModule required \\\n  username="{USER}" \\\n  password='
            )
            lines |= {
                "security.protocol": "SASL_SSL",
                "sasl.mechanism": name,
                "sasl.jaas.config": f'{jaas}"{_escaped(_escaped(password))}";',
            }
        lines |= {name.replace("_", "."): value for name, value in changes.items()}
        return "# The cluster, as Kafka's own tools take it.\n" + "".join(
            f"{name}={value}\n" for name, value in lines.items() if value is not None
        )


def _escaped(text: str) -> str:
    """The text in quotes of a login configuration, or as a value of a properties file."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
