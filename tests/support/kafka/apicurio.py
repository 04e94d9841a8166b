"""Apicurio Registry, which is no part of ours and speaks Confluent's API, in a process of its own."""

import hashlib
import json
import os
import subprocess
import tarfile
import urllib.request
from pathlib import Path
from urllib.error import URLError

from include.local import java
from include.settings import settings
from tests.conftest import free_port
from tests.support.kafka import ivy
from tests.support.waiting import wait_until

VERSION = "2.6.13.Final"
SHA256 = "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba"
IVY_MODULE = f"""<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="sluice" module="apicurio"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="io.apicurio" name="apicurio-registry-app" rev="{VERSION}" conf="default" transitive="false">
      <artifact name="apicurio-registry-app" type="tar.gz" ext="tar.gz" m:classifier="all"/>
    </dependency>
  </dependencies>
</ivy-module>
"""


class Apicurio:
    """A registry with its schemas in memory. url: of Confluent's API."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/apis/ccompat/v7"
        jar = next(_directory().glob("*-runner.jar"))
        command = [str(java.home() / "bin" / "java"), "-Xmx400m", "-jar", str(jar)]
        environment = {**os.environ, "QUARKUS_HTTP_PORT": str(self.port), "QUARKUS_HTTP_HOST": "127.0.0.1"}
        with (settings().home / "apicurio.log").open("wb") as log:
            self.process = subprocess.Popen(
                command, cwd=jar.parent, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
        wait_until(self._answers, 180)

    def register(self, schema: str, subject: str = "orders-value") -> int:
        """Registers a schema, and returns its id."""
        request = urllib.request.Request(
            f"{self.url}/subjects/{subject}/versions",
            json.dumps({"schema": schema}).encode(),
            {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return int(json.load(response)["id"])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as response:
                return bool(response.status == 200)
        except URLError:
            return False


def _directory() -> Path:
    """Fetches the registry beside the other jars, once, and returns its directory."""
    target = settings().jars / f"apicurio-{VERSION}"
    if target.is_dir():
        return target
    work = ivy.fetch("apicurio", IVY_MODULE)
    archive = work / "apicurio-registry-app.tar.gz"
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == SHA256
    with tarfile.open(archive) as files:
        files.extractall(target.with_suffix(".new"), filter="data")
    target.with_suffix(".new").rename(target)
    archive.unlink()
    return target
