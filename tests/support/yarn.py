"""A YARN of one node on loopback: Hadoop's ResourceManager and NodeManager, each a process."""

import json
import os
import subprocess
import urllib.request
from pathlib import Path

from include.local import artifacts, environment, java
from include.settings import settings
from tests.conftest import free_port
from tests.support.waiting import wait_until

PACKAGE = "org.apache.hadoop.yarn.server"
MANAGERS = {"ResourceManager": "resourcemanager", "NodeManager": "nodemanager"}
START_SECONDS, ANSWER_SECONDS = 1_200, 5


class Yarn:
    """url: of the ResourceManager's REST API. conf: the directory of its configuration, as HADOOP_CONF_DIR."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.conf = directory, directory / "conf"
        self.conf.mkdir(parents=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        addresses = {
            "yarn.resourcemanager.webapp.address": f"127.0.0.1:{port}",
            **{f"yarn.resourcemanager{kind}.address": _address() for kind in ("", ".scheduler", ".admin")},
            "yarn.resourcemanager.resource-tracker.address": _address(),
            **{f"yarn.nodemanager{kind}.address": _address() for kind in ("", ".localizer", ".webapp")},
            "yarn.nodemanager.collector-service.address": _address(),
        }
        node = {
            "yarn.nodemanager.local-dirs": directory / "local",
            "yarn.nodemanager.log-dirs": directory / "logs",
            "yarn.nodemanager.resource.memory-mb": 6_144,
            # Memory of processes that share files would count for each of them.
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": 100,
        }
        self._write("core-site", {"fs.defaultFS": "file:///", "hadoop.tmp.dir": directory / "tmp"})
        self._write("yarn-site", addresses | node)
        queue = {"root.queues": "default", "root.default.capacity": 100, "maximum-am-resource-percent": 1}
        self._write("capacity-scheduler", {f"yarn.scheduler.capacity.{name}": value for name, value in queue.items()})
        logging = environment.spark_logging().replace("rootLogger.level = warn", "rootLogger.level = info")
        (self.conf / "log4j2.properties").write_text(logging)
        self._processes: list[subprocess.Popen] = []

    def start(self) -> None:
        """Start both, and wait until the node takes applications."""
        class_path = f"{self.conf}:{settings().jars}/yarn/*:{artifacts.pyspark_jars()}/*"
        options = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "--add-opens=java.base/java.lang=ALL-UNNAMED"]
        # A node hands its variables on to containers, and the launcher must not need those of the tests.
        java_home = java.home()
        variables = {"PATH": os.environ["PATH"], "JAVA_HOME": str(java_home)}
        for name, package in MANAGERS.items():
            command = [str(java_home / "bin" / "java"), *options, "-cp", class_path, f"{PACKAGE}.{package}.{name}"]
            with (self.directory / f"{name}.log").open("wb") as log:
                self._processes.append(
                    subprocess.Popen(command, env=variables, cwd=self.directory, stdout=log, stderr=log)
                )
        wait_until(lambda: self._nodes() == ["RUNNING"], START_SECONDS, self.output)

    def stop(self) -> None:
        """A node that ends takes its containers with it."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()

    def output(self) -> str:
        """The end of the output of both, and of all containers."""
        files = [*self.directory.glob("*.log"), *self.directory.glob("logs/*/*/std*")]
        return "\n".join(f"== {file}\n{file.read_text(errors='replace')[-3_000:]}" for file in files)

    def _nodes(self) -> list[str]:
        try:
            with urllib.request.urlopen(f"{self.url}/ws/v1/cluster/nodes", timeout=ANSWER_SECONDS) as response:
                return [node["state"] for node in (json.load(response)["nodes"] or {}).get("node", [])]
        except (OSError, ValueError):
            return []

    def _write(self, name: str, values: dict[str, object]) -> None:
        lines = [f"<property><name>{key}</name><value>{value}</value></property>" for key, value in values.items()]
        (self.conf / f"{name}.xml").write_text("\n".join(["<configuration>", *lines, "</configuration>"]))


def _address() -> str:
    return f"127.0.0.1:{free_port()}"
