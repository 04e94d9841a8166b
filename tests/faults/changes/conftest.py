"""Fixtures: a database whose changes can be read, and Kafka Connect."""

from collections.abc import Iterator

import pytest

from include.settings import settings
from tests.conftest import free_port
from tests.support import connect
from tests.support.connect import Connect
from tests.support.postgresql import Server


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    server = Server(free_port(), "wal_level=logical")
    server.start()
    yield server
    server.remove()


@pytest.fixture(scope="package")
def kafka_connect(broker: str) -> Iterator[Connect]:
    with connect.running(settings().home / "connect-of-tests") as running:
        yield running
