"""Table files that are broken and mended while a platform runs and its drivers are killed: the others notice nothing.

By default two broken files and one kill; `make faults` makes it five rounds of that, each with a kill beside right
files alone for comparison.
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

from include.control import commands, incidents, lease
from include.control.commands import Action, Command
from include.control.store import database
from include.control.store.schema import runs
from include.local import environment, java
from include.settings import Settings, from_environment
from tests.conftest import ROOT
from tests.support.shop import ABOVE, BRONZE
from tests.support.topic import Topic
from tests.support.waiting import wait_until

KILLS = 5 if os.environ.get("SLUICE_FAULTS") == "full" else 1
SEED = int(os.environ.get("SLUICE_SEED", "4"))
WRONG, GOOD = "silver.wrong", "silver.good"
# As Airflow does it each minute, with the table files as they are then.
SUPERVISOR = """
import os, threading
from include.orchestration import reconcile
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
    """A checkout with three tables of its own: `silver.wrong` and `silver.good` both read one bronze table."""

    def __init__(self, root: Path, home: Path, topic: Topic) -> None:
        for room in ("include", "jobs"):
            shutil.copytree(ROOT / room, root / room, ignore=shutil.ignore_patterns("__pycache__"))
        self.root, self.topic = root, topic
        self.write("bronze.events", BRONZE.format(name="events").replace('Kafka("events")', f'Kafka("{topic.name}")'))
        self.right = {table: self._typed(table) for table in (WRONG, GOOD)}
        for table, text in self.right.items():
            self.write(table, text)
        given = {"SLUICE_HOME": str(home), "SLUICE_KAFKA": topic.servers, "SLUICE_EXAMPLES": "off"}
        self.where: Settings = from_environment(
            {**given, "SLUICE_JARS": os.environ["SLUICE_JARS"], "SLUICE_LEASE_SECONDS": "10"}
        )
        java_home = java.home()
        self.environment = environment.process_environment(environment.write(self.where, java_home), java_home) | {
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

    def _typed(self, table: str) -> str:
        layer, name = table.split(".")
        number = '"CAST(CAST(value AS STRING) AS BIGINT) AS number"'
        return ABOVE.format(layer=layer, name=name, source="bronze.events", columns=number, schema="number BIGINT")

    @property
    def control(self) -> Engine:
        return database.connect(self.where.control_url)

    @property
    def log(self) -> Path:
        return self.where.logs / "driver-main.log"

    def story(self) -> str:
        """For whoever reads why a test failed."""
        with database.transaction(self.control) as connection:
            rows = "\n".join(map(str, connection.execute(select(runs))))
        supervisor = (self.where.logs / "supervisor.log").read_text()[-3000:]
        return f"{self.log.read_text()[-3000:] if self.log.exists() else ''}\n{supervisor}\n{rows}"

    @contextmanager
    def supervised(self) -> Iterator[None]:
        """To the end of the block, drivers included."""
        command = [sys.executable, "-c", SUPERVISOR]
        with (self.where.logs / "supervisor.log").open("ab") as log:
            supervisor = subprocess.Popen(
                command, cwd=self.root, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield
        finally:
            supervisor.kill()
            supervisor.wait()
            wait_until(self._ended, 60)

    def _ended(self) -> bool:
        with database.transaction(self.control) as connection:
            holders = lease.holders(connection).values()
        for holder in holders:
            holder.fence()
        return not holders

    def kill_driver(self) -> None:
        with database.transaction(self.control) as connection:
            lease.holders(connection)["driver main"].fence()
        # After a healthy spell it starts at once by itself; nobody waits for three minutes here.
        flows = ("bronze.events", WRONG, GOOD)
        commands.execute(self.control, Command(Action.START, flows, "a test", "it was healthy"))

    def numbers(self, table: str) -> list[int]:
        with suppress(TableNotFoundError):
            return DeltaTable(str(self.where.table_path(table))).to_pyarrow_table()["number"].to_pylist()
        return []

    def failed(self) -> set[str]:
        """The flows that said why they ended."""
        with database.transaction(self.control) as connection:
            return set(connection.execute(select(runs.c.flow).where(runs.c.failure.is_not(None))).scalars())

    def alarm(self, table: str) -> bool:
        return incidents.open_of(self.control, incidents.of_definition(table)) is not None


def wrong(dice: random.Random, right: str) -> str | bytes:
    """One of the ways in which a file can be wrong."""
    name = '"silver.wrong"'
    ways: list[str | bytes] = [
        right[: dice.randrange(right.index("schema="))] + "(",
        right.replace('")', '"', 1),
        right.replace(name, '"silver.another"'),
        right.replace("Delta(", "Delat(", 1),
        right.replace("comment=", "coment="),
        right.replace('"bronze.events")', '"bronze.nothing")'),
        right.replace("schema=", 'time_column=["x"], schema='),
        right.replace("schema=", "driver=5, schema="),
        right.replace("number BIGINT", "number BIGITN"),
        right + "\nraise SystemExit(2)\n",
        right + "\n1 / 0\n",
        "",
        dice.randbytes(200),
    ]
    return dice.choice(ways)


@pytest.fixture
def project(tmp_path: Path, broker: str) -> Project:
    return Project(tmp_path / "project", tmp_path / "home", Topic(broker).create())


def test_wrong_files_beside_right_ones_cost_the_right_ones_nothing_while_drivers_die(project: Project, capsys):
    dice = random.Random(SEED)
    sent, waits = 0, {"right": [], "wrong": []}

    def send_and_wait() -> float:
        """Seconds until ten new rows are in all tables, of which one has a wrong file."""
        nonlocal sent
        project.topic.send(*range(sent, sent + 10))
        sent, begin = sent + 10, time.monotonic()
        wait_until(lambda: len(project.numbers(GOOD)) >= sent <= len(project.numbers(WRONG)), 240, project.story)
        return time.monotonic() - begin

    with project.supervised():
        send_and_wait()
        wait_until(lambda: (project.where.definitions / f"{WRONG}.json").exists(), 60, project.story)
        for number in range(KILLS):
            if KILLS > 1:
                project.kill_driver()
                waits["right"].append(send_and_wait())
            # One that never was right, and one that was: what runs of it goes on with what it said before.
            project.write("gold.new", wrong(dice, project.right[WRONG]))
            project.write(WRONG, wrong(dice, project.right[WRONG]))
            wait_until(lambda: project.alarm(WRONG) and project.alarm("gold.new"), 60, project.story)
            send_and_wait()
            project.kill_driver()
            waits["wrong"].append(send_and_wait())
            assert project.failed() == set(), project.story()
            project.write(WRONG, project.right[WRONG])
            project.remove("gold.new")
            wait_until(lambda: not project.alarm(WRONG) and not project.alarm("gold.new"), 60, project.story)
            with capsys.disabled():
                print(f"\rkill {number + 1} of {KILLS}", end="")
    assert sorted(project.numbers(GOOD)) == sorted(project.numbers(WRONG)) == list(range(sent))
    if KILLS > 1:
        medians = {kind: statistics.median(seconds) for kind, seconds in waits.items()}
        with capsys.disabled():
            print(f"\nfrom a kill to the next rows, median: {medians} s")
        assert medians["wrong"] < 1.5 * medians["right"]
