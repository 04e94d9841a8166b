"""Airflow on this machine: its database, its four processes, and the little of its REST API that `make up` needs."""

import hashlib
import json
import os
import sqlite3
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.errors import SetupError
from include.local import environment, install
from include.local.processes import Platform
from include.settings import Settings

API = "airflow-api-server"
SCHEDULER = "airflow-scheduler"
PARSER = "airflow-dag-processor"
TRIGGERER = "airflow-triggerer"
# Task logs are read from disk, so nobody needs the two servers that would take ports 8793 and 8794.
COMMANDS = {
    API: ["api-server"],
    SCHEDULER: ["scheduler", "--skip-serve-logs"],
    PARSER: ["dag-processor"],
    TRIGGERER: ["triggerer", "--skip-serve-logs"],
}


@dataclass(frozen=True)
class Airflow:
    """variables: the environment of its processes."""

    where: Settings
    platform: Platform
    variables: dict[str, str]

    def begin_migration(self) -> subprocess.Popen[bytes] | None:
        """Start bringing the database to this version's schema; None where it is there already."""
        if self._migrated.exists() and self._migrated.read_text() == _version():
            return None
        self._migrated.unlink(missing_ok=True)
        with sqlite3.connect(self._home / "airflow.db") as connection:
            # Kept in the file: with a write-ahead log, readers and the one writer do not wait for each other.
            connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        with self.platform.log("airflow-migration").open("a") as log:
            command = [_airflow(), "db", "migrate"]
            return subprocess.Popen(command, env=self.variables, stdout=log, stderr=subprocess.STDOUT)

    def end_migration(self, migration: subprocess.Popen[bytes] | None) -> None:
        """Wait for it. Raises SetupError."""
        if migration and migration.wait():
            raise SetupError(
                f"the Airflow database {self._home / 'airflow.db'} could not be brought up to date: "
                f"read {self.platform.log('airflow-migration')}; it ends with\n"
                f"{self.platform.last_lines('airflow-migration')}"
            )
        self._migrated.write_text(_version())

    def start(self, name: str) -> None:
        """Start one of `COMMANDS`, unless it runs."""
        if not self.platform.find(name):
            self.platform.start(name, [_airflow(), *COMMANDS[name]], self.variables)

    def wait(self, timeout_seconds: float, check: Callable[[], None]) -> None:
        """Return once the API server lets the user in. `check` may raise. Raises SetupError."""
        deadline = time.monotonic() + timeout_seconds
        while not self._token():
            check()
            if time.monotonic() > deadline:
                raise SetupError(
                    f"Airflow does not answer at {self.url} after {timeout_seconds:.0f} s: "
                    f"read {self.platform.log(API)}"
                )
            time.sleep(0.3)

    def trigger(self, dag: str, timeout_seconds: float, check: Callable[[], None]) -> None:
        """Start a run of `dag` as soon as Airflow has parsed it. Raises SetupError."""
        deadline = time.monotonic() + timeout_seconds
        while True:
            check()
            status, answer = self._ask("POST", f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None})
            if status == 200:
                return
            broken = self._ask("GET", "/api/v2/importErrors")[1].get("import_errors", [])
            for error in broken:
                raise SetupError(f"Airflow cannot import {error['filename']}: mend it\n{error['stack_trace']}")
            if time.monotonic() > deadline:
                raise SetupError(
                    f"DAG '{dag}' cannot be started after {timeout_seconds:.0f} s "
                    f"(Airflow answers {status}: {answer}): read {self.platform.log(PARSER)}"
                )
            time.sleep(0.3)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.where.airflow_port}"

    @property
    def _home(self) -> Path:
        return self.where.home / "airflow"

    @property
    def _migrated(self) -> Path:
        return self._home / "migrated-lock.sha256"

    def _token(self) -> str | None:
        login = {"username": environment.USER, "password": environment.password(self.where)}
        return _request(f"{self.url}/auth/token", "POST", login, {})[1].get("access_token")

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        return _request(self.url + path, method, body, {"Authorization": f"Bearer {self._token()}"})


def _request(url: str, method: str, body: Any, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """Status and JSON answer; status 0 where nobody answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
    # A proxy of the environment must not get what is meant for this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, {"detail": error.read().decode(errors="replace")}
    except (OSError, ValueError):
        return 0, {}


def _airflow() -> str:
    return os.fspath(install.venv() / "bin" / "airflow")


def _version() -> str:
    return hashlib.sha256(install.LOCK.read_bytes()).hexdigest()
