"""Table files are broken and repaired on a running platform, while drivers are killed. Other tables are not affected.

It takes minutes, so only `make faults` runs it, in five rounds, each also with a kill while all files are valid, for
comparison. `tests/unit/project/test_last_good.py` is the short form, without a platform.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from sqlalchemy import Engine, select

from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import incidents
from include.control.flows.alarms import AlarmKind
from include.control.leases import lease
from include.control.store import database
from include.control.store.schema import runs
from include.lake import locations
from include.local import environment, java
from include.settings import Settings, from_environment
from tests.conftest import ROOT
from tests.support.flows import only_in_full_runs
from tests.support.shop import BRONZE_TEMPLATE, READER_TEMPLATE
from tests.support.topic import Topic
from tests.support.waiting import wait_until

KILLS = 5
SEED = int(os.environ.get("SLUICE_SEED", "4"))
WRONG, GOOD = "silver.wrong", "silver.good"
# Airflow reconciles each minute. Each child process loads the current table files.
SUPERVISOR = """
import os, threading
from include.airflow.supervisor import reconcile
while os.path.exists(os.environ["SLUICE_HOME"]):
    child = os.fork()
    if child == 0:
        try:
            reconcile.reconcile_all()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    threading.Event().wait(1)
"""


class Project:
    """A checkout with three tables: `silver.wrong` and `silver.good` read the same bronze table."""

    def __init__(self, root: Path, home: Path, topic: Topic) -> None:
        for folder in ("include", "jobs"):
            shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.root, self.topic = root, topic
        self.write(
            "bronze.events", BRONZE_TEMPLATE.format(name="events").replace('Kafka("events")', f'Kafka("{topic.name}")')
        )
        self.valid_files = {table: self._table_file(table) for table in (WRONG, GOOD)}
        for table, text in self.valid_files.items():
            self.write(table, text)
        base_settings = {"SLUICE_HOME": str(home), "SLUICE_KAFKA": topic.servers, "SLUICE_EXAMPLES": "off"}
        self.config: Settings = from_environment(
            {**base_settings, "SLUICE_JARS": os.environ["SLUICE_JARS"], "SLUICE_LEASE_SECONDS": "10"}
        )
        java_home = java.home()
        self.environment = environment.process_environment(environment.write(self.config, java_home), java_home) | {
            "PYTHONPATH": str(root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "_AIRFLOW_PROCESS_CONTEXT": "server",
        }

    def write(self, table: str, text: str | bytes) -> None:
        file = self.root / "include" / "tables" / f"{table.replace('.', '/')}.py"
        file.with_suffix(".new").write_bytes(text if isinstance(text, bytes) else text.encode())
        file.with_suffix(".new").rename(file)

    def remove(self, table: str) -> None:
        (self.root / "include" / "tables" / f"{table.replace('.', '/')}.py").unlink()

    def _table_file(self, table: str) -> str:
        layer, name = table.split(".")
        number = '"CAST(CAST(value AS STRING) AS BIGINT) AS number"'
        return READER_TEMPLATE.format(
            layer=layer, name=name, source="bronze.events", columns=number, schema="number BIGINT"
        )

    @property
    def control(self) -> Engine:
        return database.connect(self.config.control_url)

    @property
    def log(self) -> Path:
        return self.config.logs / "driver-main.log"

    def details(self) -> str:
        """Diagnostics for the message of a failed test."""
        with database.transaction(self.control) as connection:
            rows = "\n".join(map(str, connection.execute(select(runs))))
        supervisor = (self.config.logs / "supervisor.log").read_text()[-3000:]
        return f"{self.log.read_text()[-3000:] if self.log.exists() else ''}\n{supervisor}\n{rows}"

    @contextmanager
    def running_supervisor(self) -> Iterator[None]:
        """Run the supervisor during the block, and kill its drivers at the end."""
        command = [sys.executable, "-c", SUPERVISOR]
        with (self.config.logs / "supervisor.log").open("ab") as log:
            supervisor = subprocess.Popen(
                command, cwd=self.root, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield
        finally:
            supervisor.kill()
            supervisor.wait()
            wait_until(self._fence_drivers, 60)

    def _fence_drivers(self) -> bool:
        with database.transaction(self.control) as connection:
            holders = lease.holders(connection).values()
        for holder in holders:
            holder.fence()
        return not holders

    def kill_driver(self) -> None:
        with database.transaction(self.control) as connection:
            lease.holders(connection)["driver main"].fence()
        # Only a driver that ran for three minutes restarts at once. The command avoids the delay.
        flows = ("bronze.events", WRONG, GOOD)
        commands.execute(self.control, Command(Action.START, flows, "a test", "it was healthy"))

    def numbers(self, table: str) -> list[int]:
        with suppress(TableNotFoundError):
            return DeltaTable(str(locations.table_path(table, self.config))).to_pyarrow_table()["number"].to_pylist()
        return []

    def failed_flows(self) -> set[str]:
        """The flows with a recorded failure."""
        with database.transaction(self.control) as connection:
            return set(connection.execute(select(runs.c.flow).where(runs.c.failure.is_not(None))).scalars())

    def has_alarm(self, table: str) -> bool:
        return incidents.open_of(self.control, AlarmKind.INVALID_DEFINITION.target(table)) is not None


def invalid_file(rng: random.Random, valid_file: str) -> str | bytes:
    """A random invalid variant of a valid table file."""
    name = '"silver.wrong"'
    variants: list[str | bytes] = [
        valid_file[: rng.randrange(valid_file.index("schema="))] + "(",
        valid_file.replace('")', '"', 1),
        valid_file.replace(name, '"silver.another"'),
        valid_file.replace("Delta(", "Delat(", 1),
        valid_file.replace("comment=", "coment="),
        valid_file.replace('"bronze.events")', '"bronze.nothing")'),
        valid_file.replace("schema=", 'time_column=["x"], schema='),
        valid_file.replace("schema=", "driver=5, schema="),
        valid_file.replace("number BIGINT", "number BIGITN"),
        valid_file + "\nraise SystemExit(2)\n",
        valid_file + "\n1 / 0\n",
        "",
        rng.randbytes(200),
    ]
    return rng.choice(variants)


@pytest.fixture
def project(tmp_path: Path, broker: str) -> Project:
    return Project(tmp_path / "project", tmp_path / "home", Topic(broker).create())


@only_in_full_runs
def test_wrong_files_beside_right_ones_cost_the_right_ones_nothing_while_drivers_die(project: Project, capsys):
    rng = random.Random(SEED)
    sent, seconds_by_kind = 0, {"right": [], "wrong": []}

    def send_and_wait() -> float:
        """Send ten rows. Returns the seconds until both silver tables hold the rows."""
        nonlocal sent
        project.topic.send(*range(sent, sent + 10))
        sent, started_at = sent + 10, time.monotonic()
        wait_until(lambda: len(project.numbers(GOOD)) >= sent <= len(project.numbers(WRONG)), 240, project.details)
        return time.monotonic() - started_at

    with project.running_supervisor():
        send_and_wait()
        wait_until(lambda: (project.config.definitions / f"{WRONG}.json").exists(), 60, project.details)
        for number in range(KILLS):
            project.kill_driver()
            seconds_by_kind["right"].append(send_and_wait())
            # `gold.new` never had a valid definition. The flow of WRONG continues with its last valid definition.
            project.write("gold.new", invalid_file(rng, project.valid_files[WRONG]))
            project.write(WRONG, invalid_file(rng, project.valid_files[WRONG]))
            wait_until(lambda: project.has_alarm(WRONG) and project.has_alarm("gold.new"), 60, project.details)
            send_and_wait()
            project.kill_driver()
            seconds_by_kind["wrong"].append(send_and_wait())
            assert project.failed_flows() == set(), project.details()
            project.write(WRONG, project.valid_files[WRONG])
            project.remove("gold.new")
            wait_until(lambda: not project.has_alarm(WRONG) and not project.has_alarm("gold.new"), 60, project.details)
            with capsys.disabled():
                print(f"\rkill {number + 1} of {KILLS}", end="")
    assert sorted(project.numbers(GOOD)) == sorted(project.numbers(WRONG)) == list(range(sent))
    medians = {kind: statistics.median(seconds) for kind, seconds in seconds_by_kind.items()}
    with capsys.disabled():
        print(f"\nfrom a kill to the next rows, median: {medians} s")
    assert medians["wrong"] < 1.5 * medians["right"]
