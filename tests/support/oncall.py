"""The on-call engineer, with Airflow's command line and REST API at hand."""

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
    """kit: the Airflow that runs."""

    kit: Airflow

    def cli(self, *arguments: str) -> str:
        command = [str(Path(sys.executable).parent / "airflow"), *arguments]
        done = subprocess.run(command, env=self.kit.variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, run: str, action: str, **target: str) -> None:
        """Trigger `control.stream` for `flow=...` or `driver=...`."""
        form = {"action": action, "reason": "a test", **target}
        self.cli("dags", "trigger", CONTROL, "-r", run, "-c", json.dumps(form))

    def trigger(self, dag: str, form: dict) -> str:
        """Returns the run's name."""
        run = f"run-{uuid.uuid4().hex[:6]}"
        self.cli("dags", "trigger", dag, "-r", run, "-c", json.dumps(form))
        return run

    def rest(self, path: str, method: str = "GET", body: dict | None = None) -> dict:
        """The answer of the REST API, for a path below its dags."""
        login = {"username": environment.USER, "password": environment.password(self.kit.where)}
        token = self._send("/auth/token", "POST", login, "")["access_token"]
        return self._send(f"/api/v2/dags/{path}", method, body, token)

    def tasks(self, run: str, dag: str = CONTROL) -> dict[str, str | None]:
        found = self.rest(f"{dag}/dagRuns/{run}/taskInstances")["task_instances"]
        return {one["task_id"]: one["state"] for one in found}

    def wait(self, run: str, task: str, *states: str, timeout_seconds: float = 120, dag: str = CONTROL) -> None:
        wait_until(lambda: self.tasks(run, dag)[task] in states, timeout_seconds, lambda: str(self.tasks(run, dag)))

    def wait_for_question(self, run: str, dag: str = CONTROL) -> None:
        """Until an answer counts: one that comes before the scheduler heard of the waiting fails the task."""
        self.wait(run, "approve", "awaiting_input", dag=dag)
        task = f"TaskInstanceKey(dag_id='{dag}', task_id='approve', run_id='{run}'"
        heard = f"Received executor event with state success for task instance {task}"
        wait_until(lambda: heard in self.kit.platform.log(airflow.SCHEDULER).read_text(), 60)

    def question(self, run: str, dag: str = CONTROL) -> dict:
        """What whoever approves is shown."""
        return self.rest(_question(run, dag))

    def answer(self, run: str, option: str, dag: str = CONTROL) -> None:
        assert self.question(run, dag)["responded_at"] is None
        self.rest(_question(run, dag), "PATCH", {"chosen_options": [option], "params_input": {}})

    def _send(self, path: str, method: str, body: dict | None, token: str) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.kit.url + path, data, headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as answer:
            return json.load(answer)


def copied(database: Path, to: Path) -> Path:
    """A SQLite database, of which others may have parts in memory."""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)
    return to


@contextmanager
def on_call(where: Settings, database: Path) -> Iterator[OnCall]:
    """At a real API server and scheduler of this home's own; `supervise` is paused, so that it starts no driver.

    database: Airflow's, that knows the DAGs; it is copied, as making one takes two starts of Airflow.
    """
    platform, java_home = Platform(where.home), java.home()
    variables = environment.of_process(environment.write(where, java_home), java_home)
    person = OnCall(Airflow(where, platform, variables))
    own = copied(database, where.home / "airflow" / "airflow.db")
    with closing(sqlite3.connect(own)) as connection, connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("UPDATE dag SET is_paused = TRUE WHERE dag_id = ?", (SUPERVISOR,))
    try:
        person.kit.start(airflow.API)
        person.kit.start(airflow.SCHEDULER)
        person.kit.wait(120, lambda: None)
        yield person
    finally:
        platform.stop(5)


def _question(run: str, dag: str) -> str:
    return f"{dag}/dagRuns/{run}/taskInstances/approve/-1/hitlDetails"
