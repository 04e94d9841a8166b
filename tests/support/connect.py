"""Kafka Connect for tests: one worker, and the connectors that a test adds to it."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psycopg

from include.kafka import cluster
from include.local import java
from include.local.connect import RUNNING, Worker
from include.local.connector import PASSWORD
from include.settings import settings
from tests.conftest import free_port
from tests.support.waiting import wait_until

SECONDS = 120


@dataclass
class Connect:
    """A worker that runs."""

    worker: Worker

    def add(self, name: str, configuration: dict[str, str]) -> None:
        """Add a connector. Its name is that of its slot, too."""
        wait_until(lambda: self._request("PUT", f"{name}/config", configuration), SECONDS)
        self.worker.connectors[name] = configuration

    def remove(self, connection: psycopg.Connection, name: str) -> None:
        """Remove a connector, if there is one, and its slot in the database."""
        if self.worker.connectors.pop(name, None):
            self._request("DELETE", name)
        slot = "FROM pg_replication_slots WHERE slot_name = %s"
        wait_until(lambda: not connection.execute(f"SELECT {slot} AND active", [name]).fetchall(), SECONDS)
        connection.execute(f"SELECT pg_drop_replication_slot(slot_name) {slot}", [name])

    def wait_for_changes(self, connection: psycopg.Connection, *names: str) -> None:
        """Wait until these connectors have sent all changes that were committed so far."""
        wait_for_changes(connection, *names, details=lambda: str(self.worker.states()))
        assert {self.worker.states()[name] for name in names} == {RUNNING}

    def _request(self, method: str, path: str, body: dict[str, str] | None = None) -> bool:
        """Whether the worker is ready, and does it."""
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.worker.port}/connectors/{path}"
        try:
            urlopen(Request(url, data, {"Content-Type": "application/json"}, method=method), timeout=60).close()
        except HTTPError as error:
            # A worker that starts answers before it knows its pages.
            if error.code == HTTPStatus.NOT_FOUND:
                return False
            raise AssertionError(error.read().decode()) from error
        except URLError:
            return False
        return True


def wait_for_changes(connection: psycopg.Connection, *slots: str, details=lambda: "") -> None:
    """Wait until the connectors of these slots have sent all changes that were committed so far."""
    [sent] = connection.execute("SELECT pg_current_wal_insert_lsn()").fetchone()
    flushed = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = ANY(%s) AND confirmed_flush_lsn >= %s"

    def are_flushed() -> bool:
        # A slot moves only when a later record was sent, too.
        connection.execute("SELECT pg_logical_emit_message(true, 'marker', '')")
        return connection.execute(flushed, [list(slots), sent]).fetchone() == (len(slots),)

    wait_until(are_flushed, SECONDS, details, poll_seconds=0.5)


@contextmanager
def running(directory: Path) -> Iterator[Connect]:
    """A worker without connectors."""
    worker = Worker(directory, settings().jars, java.home(), cluster.named(None), free_port(), {}, heap_megabytes=512)
    worker.prepare()
    with (directory / "log").open("wb") as log:
        variables = {**os.environ, PASSWORD: ""}
        process = subprocess.Popen(worker.command(), cwd=directory, env=variables, stdout=log, stderr=log)
    try:
        yield Connect(worker)
    finally:
        process.kill()
        process.wait()
