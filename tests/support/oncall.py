"""The on-call engineer, who uses Airflow's command line and REST API."""

import json
import sqlite3
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from include.local import airflow, environment, java
from include.local.airflow import Airflow
from include.local.processes import Platform
from include.local.up import SUPERVISOR
from include.settings import Settings
from tests.support.waiting import wait_until

CONTROL = "control.stream"


@dataclass(frozen=True)
class OnCall:
    """airflow: the processes of the running Airflow."""

    airflow: Airflow

    def cli(self, *arguments: str) -> str:
        command = [str(Path(sys.executable).parent / "airflow"), *arguments]
        result = subprocess.run(command, env=self.airflow.variables, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def trigger_control(self, run: str, action: str, **target: str) -> None:
        """Trigger `control.stream` for `flow=...` or `driver=...`."""
        conf = {"action": action, "reason": "a test", **target}
        self.cli("dags", "trigger", CONTROL, "-r", run, "-c", json.dumps(conf))

    def trigger(self, dag: str, conf: dict) -> str:
        """Trigger a run with these parameters. Returns the run id."""
        run = f"run-{uuid.uuid4().hex[:6]}"
        self.cli("dags", "trigger", dag, "-r", run, "-c", json.dumps(conf))
        return run

    def rest(self, path: str, method: str = "GET", body: dict | None = None) -> dict:
        """Call the REST API at a path below `/api/v2/dags/`. Returns its JSON answer."""
        token = self.airflow.token()
        assert token is not None
        return self._send(f"/api/v2/dags/{path}", method, body, token)

    def tasks(self, run: str, dag: str = CONTROL) -> dict[str, str | None]:
        tasks = self.rest(f"{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {task["task_id"]: task["state"] for task in tasks}

    def wait(self, run: str, task: str, *states: str, timeout_seconds: float = 120, dag: str = CONTROL) -> None:
        wait_until(lambda: self.tasks(run, dag)[task] in states, timeout_seconds, lambda: str(self.tasks(run, dag)))

    def wait_for_question(self, run: str, dag: str = CONTROL) -> None:
        """Wait until the scheduler knows that the task waits. An answer before that fails the task."""
        self.wait(run, "approve", "awaiting_input", dag=dag)
        task = f"TaskInstanceKey(dag_id='{dag}', task_id='approve', run_id='{run}'"
        message = f"Received executor event with state success for task instance {task}"
        wait_until(lambda: message in self.airflow.platform.log(airflow.SCHEDULER).read_text(), 60)

    def question(self, run: str, dag: str = CONTROL) -> dict:
        """The details that the approver sees."""
        return self.rest(_question(run, dag))

    def answer(self, run: str, option: str, dag: str = CONTROL) -> None:
        assert self.question(run, dag)["responded_at"] is None
        self.rest(_question(run, dag), "PATCH", {"chosen_options": [option], "params_input": {}})

    def _send(self, path: str, method: str, body: dict | None, token: str) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.airflow.url + path, data, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            return json.load(answer)


def copy_database(database: Path, copy: Path) -> Path:
    """Copy a SQLite database that other processes may have open."""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    return copy


@contextmanager
def on_call(config: Settings, database: Path) -> Iterator[OnCall]:
    """Start an API server and a scheduler for this home directory. `supervise` is paused, so it starts no driver.

    database: an Airflow database with parsed DAGs. The test uses a copy: a new database takes two starts of Airflow.
    """
    platform, java_home = Platform(config.home), java.home()
    variables = environment.process_environment(environment.write(config, java_home), java_home)
    engineer = OnCall(Airflow(config, platform, variables))
    copy = copy_database(database, config.home / "airflow" / "airflow.db")
    with closing(sqlite3.connect(copy)) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE dag SET is_paused = TRUE WHERE dag_id = ?", (SUPERVISOR,))
    try:
        engineer.airflow.start(airflow.API)
        engineer.airflow.start(airflow.SCHEDULER)
        engineer.airflow.wait(120, lambda: None)
        yield engineer
    finally:
        platform.stop(5)


def _question(run: str, dag: str) -> str:
    return f"{dag}/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"
