"""Kafka, PostgreSQL and an S3 store on the address that pods reach. A cluster is given such services."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3

from include.local import environment, java
from include.local.broker import PROPERTIES, Broker
from include.settings import settings
from tests.conftest import free_port
from tests.support.cluster.node import ADDRESS, PODS
from tests.support.postgresql import Server
from tests.support.waiting import wait_until

BUCKET, REGION = "lake", "us-east-1"
PASSWORD = "of-the-control-database"


class BridgeBroker(Broker):
    """A broker that clients here reach, too, by the address of the bridge."""

    @property
    def address(self) -> str:
        return f"{ADDRESS}:{self.port}"

    def configuration(self) -> str:
        data = environment.java_property(str(self.directory / "data"))
        return PROPERTIES.format(host=ADDRESS, port=self.port, controller_port=self.controller_port, data=data)

    def _answers(self) -> bool:
        command = [sys.executable, "-c", f"import socket; socket.create_connection(('{ADDRESS}', {self.port}), 2)"]
        return subprocess.run(command, capture_output=True).returncode == 0


@dataclass(frozen=True)
class Services:
    """kafka: its address. control: URL of the control database, without the password. store: URL of the S3 store."""

    kafka: str
    control: str
    store: str


@contextmanager
def running(directory: Path) -> Iterator[Services]:
    """Run them during the block. The broker keeps its data below `directory`."""
    database = Server(free_port(), f"listen_addresses='127.0.0.1,{ADDRESS}'")
    broker = BridgeBroker(directory / "kafka", settings().jars, java.home(), free_port(), free_port())
    store_port = free_port()
    processes = []
    database.start()
    try:
        control = database.add_user("control", PASSWORD, PODS).replace("127.0.0.1", ADDRESS)
        broker.prepare()
        store = [sys.executable, "-m", "moto.server", "-H", ADDRESS, "-p", str(store_port)]
        for name, command in {"kafka": broker.command(), "store": store}.items():
            with (directory / f"{name}.log").open("ab") as log:
                processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ)))
        broker.wait(timeout_seconds=300)
        url = f"http://{ADDRESS}:{store_port}"
        wait_until(lambda: _has_bucket(url), 120)
        yield Services(broker.address, control, url)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        database.remove()


def _has_bucket(url: str) -> bool:
    try:
        keys = {"aws_access_key_id": "tests", "aws_secret_access_key": "none"}
        boto3.client("s3", endpoint_url=url, region_name=REGION, **keys).create_bucket(Bucket=BUCKET)
    except Exception:
        return False
    return True
