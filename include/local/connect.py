"""Kafka Connect on this machine: one standalone worker and its connectors, with the jars of `make connect`."""

import contextlib
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import javaproperties

from include import private_files
from include.errors import SetupError
from include.kafka.cluster import Cluster
from include.local import artifacts

CLASS_PATH = "connect"
HOST = "127.0.0.1"
RUNNING = "RUNNING"
# Jars of PySpark that the worker uses, too.
FROM_PYSPARK = (
    *("jackson-annotations", "jackson-core", "jackson-databind", "jackson-datatype-jsr310"),
    *("jersey-client", "jersey-common", "jersey-container-servlet", "jersey-container-servlet-core"),
    *("jersey-hk2", "jersey-server", "hk2-api", "hk2-locator", "hk2-utils", "aopalliance-repackaged"),
    *("osgi-resource-locator", "javassist", "jakarta.annotation-api", "jakarta.inject-api", "jakarta.servlet-api"),
    *("jakarta.validation-api", "jakarta.ws.rs-api", "jakarta.xml.bind-api", "jakarta.activation-api"),
    *("slf4j-api", "log4j-slf4j2-impl", "log4j-api", "log4j-core", "lz4-java", "snappy-java", "zstd-jni"),
)
FROM_BROKER = "kafka-clients"
WORKER, LOGGING = "worker.properties", "log4j2.properties"
JSON = "org.apache.kafka.connect.json.JsonConverter"
OFFSETS, KEPT_OFFSETS = "offsets", "offsets.kept"
# The last byte of a serialized Java map, and so of a whole file of offsets.
END_OF_MAP = b"x"
PROPERTIES = {
    "key.converter": JSON,
    "value.converter": JSON,
    "offset.storage.file.filename": OFFSETS,
    "offset.flush.interval.ms": "1000",
    "plugin.discovery": "service_load",
}
# `${env:NAME}` in the configuration of a connector.
ENVIRONMENT = {"config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider"}

LOGGERS = """rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %-5p %c{1}: %m%n
"""


@dataclass(frozen=True)
class Worker:
    """directory: its configuration and the offsets of its connectors. jars: what `artifacts.fetch` fills.

    port: of its REST interface. connectors: the configuration of each, by its name.
    """

    directory: Path
    jars: Path
    java_home: Path
    kafka: Cluster
    port: int
    connectors: Mapping[str, Mapping[str, str]]
    heap_megabytes: int = 256

    def prepare(self) -> None:
        """Write the configuration. Raises SetupError if the jars are missing."""
        if artifacts.missing(self.jars, [CLASS_PATH]):
            raise SetupError(f"{self.jars / CLASS_PATH} has not the jars of Kafka Connect: run `make connect`")
        (self.directory / "tmp").mkdir(parents=True, exist_ok=True)
        private_files.restrict(self.directory)
        kept = self.directory / KEPT_OFFSETS
        if kept.exists() and not self._stored_offsets():
            kept.replace(self.directory / OFFSETS)
        access = self.kafka.java_properties()
        providers = ",".join(filter(None, [access.pop("config.providers", ""), "env"]))
        # A worker has clients of three kinds, and a prefix for the properties of two of them.
        clients = {f"{prefix}{name}": value for prefix in ("", "producer.", "admin.") for name, value in access.items()}
        worker = {**clients, **PROPERTIES, **ENVIRONMENT, "config.providers": providers}
        worker["listeners"] = f"http://{HOST}:{self.port}"
        (self.directory / WORKER).write_text(javaproperties.dumps(worker, timestamp=False))
        (self.directory / LOGGING).write_text(LOGGERS)
        for name, properties in self.connectors.items():
            (self.directory / f"{name}.json").write_text(json.dumps({"name": name, "config": dict(properties)}))

    def keep_offsets(self) -> None:
        """Keep a copy of the offsets for the next `prepare`.

        Connect overwrites its file in place. After a kill in between the file is empty, which Connect takes for a
        first start: it would send all rows again, and no delete of the time before. The copy may be older than the
        position of the slot in the database, so a connector has to begin at the later one of both.
        """
        if offsets := self._stored_offsets():
            copy = self.directory / f"{KEPT_OFFSETS}.new"
            copy.write_bytes(offsets)
            copy.replace(self.directory / KEPT_OFFSETS)

    def _stored_offsets(self) -> bytes:
        """The content of the file of offsets, empty if a kill left it without its end."""
        file = self.directory / OFFSETS
        content = file.read_bytes() if file.exists() else b""
        return content if content.endswith(END_OF_MAP) else b""

    def command(self) -> list[str]:
        """The command that runs the worker in the foreground, in its directory. SIGTERM stops it cleanly."""
        shared = [jar for name in FROM_PYSPARK for jar in artifacts.pyspark_jars().glob(f"{name}-[0-9]*.jar")]
        shared += (self.jars / "broker").glob(f"{FROM_BROKER}-[0-9]*.jar")
        return [
            str(self.java_home / "bin" / "java"),
            *(f"-Xmx{self.heap_megabytes}m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:TieredStopAtLevel=1"),
            *("-Djava.io.tmpdir=tmp", f"-Dlog4j2.configurationFile={LOGGING}"),
            *("-cp", ":".join([f"{self.jars / CLASS_PATH}/*", *map(str, shared)])),
            *("org.apache.kafka.connect.cli.ConnectStandalone", WORKER),
            *(f"{name}.json" for name in self.connectors),
        ]

    def states(self) -> dict[str, str]:
        """The state of each connector that the worker has begun: RUNNING, or why it failed."""
        return {name: state for name in self.connectors if (state := self._state(name))}

    def _state(self, name: str) -> str | None:
        url = f"http://{HOST}:{self.port}/connectors/{name}/status"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
            status: dict[str, Any] = json.load(answer)
            parts = [status["connector"], *status["tasks"]]
            traces = [part["trace"] for part in parts if part["state"] == "FAILED"]
            # A connector without a task has only begun.
            return traces[0] if traces else RUNNING if status["tasks"] else None
        return None
