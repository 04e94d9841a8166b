"""Becomes one of the Kafka brokers: python -m include.containers.kafka NUMBER"""

import os
import sys
from dataclasses import dataclass

from include.errors import report
from include.local import java
from include.local.broker import Broker
from include.settings import ROOT, settings

PROPERTIES = ROOT / "containers" / "kafka.properties"
PORT, CONTROLLER_PORT = 9092, 9093
HEAP_MEGABYTES = 256


@dataclass(frozen=True, kw_only=True)
class Node(Broker):
    """One broker of several. number: by which the others know it. cluster_id: the same in all."""

    number: int
    cluster_id: str

    def configuration(self) -> str:
        own = {
            "node.id": str(self.number),
            "listeners": f"PLAINTEXT://:{self.port},CONTROLLER://:{self.controller_port}",
            "advertised.listeners": f"PLAINTEXT://kafka-{self.number}:{self.port}",
            "log.dirs": str(self.directory / "data"),
        }
        return "\n".join([PROPERTIES.read_text(), *(f"{name}={value}" for name, value in own.items()), ""])

    def format_options(self) -> list[str]:
        return [f"--cluster-id={self.cluster_id}"]


def main() -> None:
    node = Node(
        directory=settings().home / "kafka",
        jars=settings().jars,
        java_home=java.home(),
        port=PORT,
        controller_port=CONTROLLER_PORT,
        heap_megabytes=HEAP_MEGABYTES,
        number=int(sys.argv[1]),
        cluster_id=os.environ["KAFKA_CLUSTER_ID"],
    )
    node.prepare()
    command = node.command()
    os.execv(command[0], command)


if __name__ == "__main__":
    report(main)
