"""The Kafka cluster of the platform: a broker of its own, one node in KRaft mode, or brokers that run elsewhere."""

import base64
import contextlib
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from include import catalog
from include.errors import SetupError, UsageError
from include.kafka import cluster
from include.kafka.broker import Topics
from include.local import artifacts, environment
from include.local.processes import StallTimer
from include.settings import Settings

HOST = "127.0.0.1"
PARTITIONS = 3
# Jars of PySpark that the broker uses, too.
FROM_PYSPARK = (
    *("scala-library", "scala-reflect", "jackson-annotations", "jackson-core", "jackson-databind"),
    *("jackson-dataformat-yaml", "snakeyaml", "slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core"),
    *("lz4-java", "snappy-java", "zstd-jni"),
)

PROPERTIES = """process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={host}:{controller_port}
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=4
group.initial.rebalance.delay.ms=0
"""

LOGGING = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
logger.server.name = kafka.server.KafkaRaftServer
logger.server.level = info
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %-5p %c{1}: %m%n
"""


@dataclass(frozen=True)
class Broker:
    """directory: configuration and data of the broker. jars: the directory that `artifacts.fetch` fills."""

    directory: Path
    jars: Path
    java_home: Path
    port: int
    controller_port: int
    heap_megabytes: int = 512

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def prepare(self) -> None:
        """Write the configuration, and format the data directory if it does not exist. Raises SetupError."""
        (self.directory / "tmp").mkdir(parents=True, exist_ok=True)
        properties, data = self.directory / "server.properties", self.directory / "data"
        properties.write_text(self.configuration())
        (self.directory / "log4j2.properties").write_text(LOGGING)
        if (data / "meta.properties").exists():
            return
        arguments = ["format", *self.format_options(), "-c", str(properties)]
        result = subprocess.run(self._java("kafka.tools.StorageTool", *arguments), capture_output=True, text=True)
        if result.returncode:
            raise SetupError(f"{data} could not be formatted for Kafka: delete it if it is damaged\n{result.stderr}")

    def configuration(self) -> str:
        """The text of `server.properties`."""
        data = environment.java_property(str(self.directory / "data"))
        return PROPERTIES.format(host=HOST, port=self.port, controller_port=self.controller_port, data=data)

    def format_options(self) -> list[str]:
        """How its data directory is formatted."""
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        # With `=`, because an id may begin with a dash.
        return ["--standalone", f"--cluster-id={cluster_id}"]

    def command(self) -> list[str]:
        """The command that runs the broker in the foreground. SIGTERM stops it cleanly."""
        return self._java("kafka.Kafka", str(self.directory / "server.properties"))

    def wait(
        self,
        timeout_seconds: float,
        check: Callable[[], None] = lambda: None,
        movement: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait until the broker answers. Calls `check`, which may raise. movement: as for `StallTimer`.

        Raises SetupError if nothing has moved for `timeout_seconds`.
        """
        timer = StallTimer(timeout_seconds, movement)
        while not self._answers():
            check()
            if timer.is_over:
                raise SetupError(
                    f"the Kafka broker does not answer at {self.address}, and its start has not moved for "
                    f"{timeout_seconds:.0f} s: read its log"
                )
            time.sleep(0.1)

    def _answers(self) -> bool:
        # librdkafka prints a line for each refused connection, so a plain socket connects first.
        with contextlib.suppress(OSError, KafkaException), socket.create_connection((HOST, self.port), timeout=1):
            _admin(self.address).list_topics(timeout=2)
            return True
        return False

    def _java(self, main_class: str, *arguments: str) -> list[str]:
        directory = artifacts.pyspark_jars()
        jars = [str(jar) for name in FROM_PYSPARK for jar in directory.glob(f"{name}-[0-9]*.jar")]
        return [
            str(self.java_home / "bin" / "java"),
            *(f"-Xmx{self.heap_megabytes}m", "-Xms128m", "-XX:+UseSerialGC", "-XX:-UsePerfData"),
            f"-Djava.io.tmpdir={self.directory / 'tmp'}",
            f"-Dlog4j2.configurationFile={(self.directory / 'log4j2.properties').as_uri()}",
            *("-cp", ":".join([f"{self.jars / 'broker'}/*", *jars]), main_class, *arguments),
        ]


def create_topic(address: str, name: str, partitions: int) -> None:
    """Create the topic on a broker without passwords if it does not exist. Raises SetupError."""
    _create(_admin(address), address, name, partitions)


def _create(admin: AdminClient, address: str, name: str, partitions: int) -> None:
    """Create the topic if it does not exist, with as many replicas as its brokers choose. Raises SetupError."""
    try:
        # -1: the broker's default.
        admin.create_topics([NewTopic(name, partitions, -1)])[name].result(timeout=30)
    except KafkaException as error:
        if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
            raise SetupError(f"topic {name} cannot be created at {address} ({error}): read the broker's log") from error


def _admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address, "log_level": 0})


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


def declared_topics() -> set[str]:
    """The topics of the default cluster. Those of others are for their owners to create."""
    sources = [flow.source for flow in catalog.load().flows.values()]
    return {name for source in sources if not source.cluster for name in source.names}


def create_topics(names: Iterable[str]) -> str:
    """Create the topics that the default cluster lacks. Returns the cluster's address.

    Raises Unreachable and AccessRefused if it does not answer, and SetupError if it creates none.
    """
    kafka = cluster.named(None)
    existing = Topics(kafka).partitions()
    admin = kafka.client(AdminClient)
    for name in sorted(set(names) - existing.keys()):
        _create(admin, kafka.servers, name, PARTITIONS)
    return kafka.servers
