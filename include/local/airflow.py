"""Airflow on this machine: its database, its four processes, and the REST API calls of `make up`."""

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
from include.local.processes import Platform, StallTimer
from include.settings import Settings

API = "airflow-api-server"
SCHEDULER = "airflow-scheduler"
PARSER = "airflow-dag-processor"
TRIGGERER = "airflow-triggerer"
# Task logs are read from disk. The two log servers would need ports 8793 and 8794.
COMMANDS = {
    API: ["api-server"],
    SCHEDULER: ["scheduler", "--skip-serve-logs"],
    PARSER: ["dag-processor"],
    TRIGGERER: ["triggerer", "--skip-serve-logs"],
}


@dataclass(frozen=True)
class Airflow:
    """variables: the environment variables of its processes."""

    where: Settings
    platform: Platform
    variables: dict[str, str]

    @property
    def is_outdated(self) -> bool:
        """Whether an earlier build, with other packages, has made the database."""
        return self._migration_marker.exists() and self._migration_marker.read_text() != _version()

    def begin_migration(self) -> subprocess.Popen[bytes] | None:
        """Start the migration of the database to this version's schema; None if it is up to date."""
        if self._migration_marker.exists() and self._migration_marker.read_text() == _version():
            return None
        self._migration_marker.unlink(missing_ok=True)
        with sqlite3.connect(self._home / "airflow.db") as connection:
            # In WAL mode, which SQLite stores in the file, readers and the single writer do not block each other.
            connection.execute("PRAGMA journal_mode = WAL")
        connection.close()
        with self.platform.log("airflow-migration").open("a") as log:
            command = [_airflow(), "db", "migrate"]
            return subprocess.Popen(command, env=self.variables, stdout=log, stderr=subprocess.STDOUT)

    def end_migration(self, migration: subprocess.Popen[bytes] | None, show: Callable[[], None]) -> None:
        """Wait for the migration, and call `show` meanwhile. Raises SetupError if it fails."""
        while migration and migration.poll() is None:
            show()
            time.sleep(0.1)
        if migration and migration.returncode:
            raise SetupError(
                f"the Airflow database {self._home / 'airflow.db'} could not be brought up to date: "
                f"read {self.platform.log('airflow-migration')}; it ends with\n"
                f"{self.platform.last_lines('airflow-migration')}"
            )
        self._migration_marker.write_text(_version())

    def start(self, name: str) -> None:
        """Start a process of `COMMANDS`, unless it runs."""
        if not self.platform.find(name):
            self.platform.start(name, [_airflow(), *COMMANDS[name]], self.variables)

    def wait(self, timeout_seconds: float, check: Callable[[], None]) -> None:
        """Wait until the API server accepts the user. Calls `check`, which may raise.

        Raises SetupError if its log has not grown for `timeout_seconds`.
        """
        timer = StallTimer(timeout_seconds, lambda: self.platform.logged_bytes(API))
        while not self.token():
            check()
            if timer.is_over:
                raise SetupError(
                    f"Airflow does not answer at {self.url}, and its start does not move: read {self.platform.log(API)}"
                )
            time.sleep(0.3)

    def trigger(self, dag: str, timeout_seconds: float, check: Callable[[], None]) -> None:
        """Start a run of `dag` as soon as Airflow has parsed it.

        Raises SetupError if no further DAG was parsed for `timeout_seconds`, or for a DAG import error.
        """
        timer = StallTimer(timeout_seconds, lambda: self.call("GET", "/api/v2/dags?limit=1")[1].get("total_entries"))
        while True:
            check()
            status, answer = self.call("POST", f"/api/v2/dags/{dag}/dagRuns", {"logical_date": None})
            if status == 200:
                return
            import_errors = self.call("GET", "/api/v2/importErrors")[1].get("import_errors", [])
            for error in import_errors:
                raise SetupError(f"Airflow cannot import {error['filename']}: fix it\n{error['stack_trace']}")
            if timer.is_over:
                raise SetupError(
                    f"DAG '{dag}' cannot be started, and Airflow has parsed no further one for {timeout_seconds:.0f} s "
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
    def _migration_marker(self) -> Path:
        return self._home / "migrated-lock.sha256"

    def token(self) -> str | None:
        """Log in as `admin`, and return a token for the REST API; None if Airflow does not answer."""
        login = {"username": environment.USER, "password": environment.password(self.where)}
        return _request(f"{self.url}/auth/token", "POST", login, {})[1].get("access_token")

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        return _request(self.url + path, method, body, {"Authorization": f"Bearer {self.token()}"})


def _request(url: str, method: str, body: Any, headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON answer; status 0 if the server does not answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers}, method=method)
    # Requests to this machine must not pass through a proxy of the environment.
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
