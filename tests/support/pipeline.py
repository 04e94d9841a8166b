"""The tracker pipeline as its user runs it: a broker, a home of its own, and spark-submit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from sqlalchemy import Engine

from include import catalog
from include.control import commands, lease
from include.control.commands import Action, Command
from include.control.process import Holder
from include.control.store import database
from include.control.store.schema import desired
from include.examples import views
from include.examples.events import Event, events
from include.local import environment, java
from include.local.broker import create_topic
from include.settings import from_environment
from tests.conftest import free_port
from tests.support import expected
from tests.support.jobs import SHORT_LIVED
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent
TOPIC = "tracker-events"
TABLES = ("bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model")


def part(number: int, count: int = 3_000) -> list[Event]:
    """A seeded share of a story: each part goes on about where the one before ended."""
    start = datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(minutes=number)
    return list(events(seed=number, count=count, start=start, per_second=50))


@dataclass(frozen=True)
class Pipeline:
    """home: its SLUICE_HOME. environment: of every process it starts. servers: its broker."""

    home: Path
    environment: dict[str, str]
    servers: str
    submitted: list[subprocess.Popen] = field(default_factory=list)
    parts: Iterator[int] = field(default_factory=count)

    @property
    def log(self) -> Path:
        return self.home / "driver.log"

    def submit(self, *arguments: str) -> subprocess.Popen:
        """spark-submit jobs/stream.py in the background; its output goes to `log`."""
        with self.log.open("ab") as output:
            started = subprocess.Popen(
                self._command(arguments), cwd=ROOT, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
        self.submitted.append(started)
        return started

    def stop(self) -> None:
        """End what still runs of it."""
        for started in self.submitted:
            if started.poll() is None:
                self.kill(started, "both")

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess:
        """spark-submit jobs/stream.py to its end, with some `SLUICE_*` settings changed.

        All it says is in `stdout`: spark-submit puts there what the job writes to stderr.
        """
        return self._run("stream.py", arguments, {**self.environment, **settings})

    def backfill(self, *arguments: str) -> subprocess.CompletedProcess:
        """spark-submit jobs/backfill.py to its end."""
        return self._run("backfill.py", arguments, self.environment)

    def _run(self, job: str, arguments: tuple[str, ...], environment: dict[str, str]) -> subprocess.CompletedProcess:
        return subprocess.run(
            self._command(arguments, job),
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
        )

    def _command(self, arguments: tuple[str, ...], job: str = "stream.py") -> list[str]:
        return [str(Path(sys.executable).parent / "spark-submit"), str(ROOT / "jobs" / job), *arguments]

    def producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})

    def produce(self, events: Iterable[Event], by: Producer | None = None) -> None:
        """by: one that is connected already, where that would take longer than the events."""
        producer = by or self.producer()
        for event in events:
            producer.produce(TOPIC, key=event.key, value=event.value)
            producer.poll(0)
        assert producer.flush(30) == 0

    def produce_next(self, how_many: int = 500) -> None:
        """Events of a part that none of its tests has sent."""
        self.produce(part(next(self.parts), how_many))

    def rows(self, table: str) -> list[dict]:
        """All rows of a table, read without Spark; none while it is not stored."""
        try:
            return DeltaTable(str(self.home / "lake" / table.replace(".", "/"))).to_pyarrow_table().to_pylist()
        except TableNotFoundError:
            return []

    def count(self, table: str) -> int:
        try:
            return DeltaTable(str(self.home / "lake" / table.replace(".", "/"))).count()
        except TableNotFoundError:
            return 0

    def commits(self, *tables: str) -> int:
        """How many commits these tables, or all, have had together."""
        total = 0
        for table in tables or TABLES:
            with suppress(TableNotFoundError):
                total += DeltaTable(str(self.home / "lake" / table.replace(".", "/"))).version()
        return total

    @property
    def lease_seconds(self) -> float:
        return float(self.environment["SLUICE_LEASE_SECONDS"])

    @property
    def control(self) -> Engine:
        return database.connect(self.environment["SLUICE_CONTROL_URL"])

    def holders(self) -> dict[str, Holder]:
        """Who holds an unexpired lease, by flow."""
        with database.transaction(self.control) as connection:
            return lease.holders(connection)

    def want(self, flow: str, state: str) -> None:
        """What the on-call engineer asks for: `running` or `stopped`."""
        with database.transaction(self.control) as connection:
            connection.execute(desired.delete().where(desired.c.flow == flow))
            connection.execute(desired.insert().values(flow=flow, state=state, reason="a test"))

    def wait_until_gold_is_right(self, timeout_seconds: float = 240) -> None:
        silver, _ = expected.silver_and_quarantine(expected.messages(self.servers, TOPIC))
        right = expected.gold(silver)
        wait_until(lambda: self.gold() == right, timeout_seconds, lambda: self.log.read_text()[-3000:])

    def gold(self) -> dict:
        """As `expected.gold`."""
        return {
            (row["model"], row["minute"]): (
                row["readings"],
                row["avg_heart_bpm"],
                row["min_heart_bpm"],
                row["max_heart_bpm"],
                row["kcal"],
            )
            for row in self.rows("gold.heart_rate_by_model")
        }

    def assert_the_ledger_agrees(self) -> None:
        """Its account of every batch comes to the same, row by row."""
        done = subprocess.run(
            [sys.executable, "-m", "include.ledger", "verify"],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "every row accounted for, " in done.stdout

    def assert_nothing_lost_or_doubled(self) -> None:
        """Every table holds exactly what plain Python makes of the topic."""
        topic = expected.messages(self.servers, TOPIC)
        silver, quarantine = expected.silver_and_quarantine(topic)
        bronze = [
            expected.Message(row["topic"], row["partition"], row["offset"], row["key"], row["value"])
            for row in self.rows("bronze.tracker_events")
        ]
        assert sorted(bronze, key=lambda message: (message.partition, message.offset)) == topic
        stored = [{column: row[column] for column in expected.COLUMNS} for row in self.rows("silver.tracker_readings")]
        assert len(stored) == len(silver)
        assert {(row["device_id"], row["time"]): row for row in stored} == silver
        broken = [(row["partition"], row["offset"]) for row in self.rows("quarantine.silver_tracker_readings")]
        assert len(broken) == len(quarantine)
        assert set(broken) == quarantine
        assert self.gold() == expected.gold(silver)

    def kill(self, submitted: subprocess.Popen, which: str) -> None:
        """SIGKILL to the driver's Python (or JVM, before there is one), its JVM, or both; return once both are gone."""
        jvm = psutil.Process(submitted.pid)
        python = [child for child in jvm.children() if "stream.py" in _command_line(child)]
        for process in {"python": python or [jvm], "jvm": [jvm], "both": [jvm, *python]}[which]:
            os.kill(process.pid, signal.SIGKILL)
        submitted.wait(60)
        _, left = psutil.wait_procs(python, timeout=60)
        assert not left, "the driver's Python outlives its JVM"


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def only_trackers(control: Engine) -> None:
    """Stop the other examples before they start: they would only take the processors."""
    others = tuple(flow.flow for flow in catalog.load().flows.values() if flow.name not in TABLES)
    commands.execute(control, Command(Action.STOP, others, "a test", "the trackers are enough"))


def pipeline_at(home: Path, address: str, settings: dict[str, str]) -> Pipeline:
    """With the empty broker at that address."""
    create_topic(address, TOPIC, 3)
    create_topic(address, views.TOPIC, 3)
    where = from_environment(
        {
            "SLUICE_HOME": str(home),
            "SLUICE_JARS": os.environ["SLUICE_JARS"],
            "SLUICE_KAFKA": address,
            "SLUICE_LEASE_SECONDS": "10",
            **settings,
        }
    )
    java_home = java.home()
    variables = environment.of_process(environment.write(where, java_home), java_home)
    made = Pipeline(home, {**variables, **SHORT_LIVED}, address)
    only_trackers(made.control)
    return made


@pytest.fixture
def pipeline(tmp_path: Path, start_broker, request) -> Iterator[Pipeline]:
    """The tracker pipeline with an empty broker and an empty home of its own; a parameter changes its settings."""
    made = pipeline_at(tmp_path, start_broker(tmp_path / "broker", free_port()), getattr(request, "param", {}))
    yield made
    made.stop()


@pytest.fixture(scope="session")
def shared_pipeline(tmp_path_factory, start_broker) -> Iterator[Pipeline]:
    home = tmp_path_factory.mktemp("at-work")
    made = pipeline_at(home, start_broker(home / "broker", free_port()), {})
    yield made
    made.stop()


@pytest.fixture
def at_work(shared_pipeline: Pipeline) -> Pipeline:
    """The tracker pipeline, whose driver `submitted[-1]` is at work, for tests that leave one at work: a start is dear.

    What they send are parts of one story (`produce_next`), so that each sends something new.
    """
    if not shared_pipeline.submitted or shared_pipeline.submitted[-1].poll() is not None:
        shared_pipeline.produce_next()
        shared_pipeline.submit()
    shared_pipeline.wait_until_gold_is_right()
    return shared_pipeline
