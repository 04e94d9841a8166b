"""The tracker pipeline as a user runs it: a broker, its own home directory, and spark-submit."""

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
from include.control import commands
from include.control.commands import Action, Command
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import desired
from include.examples import views
from include.examples.events import Event, events
from include.lake import clients, locations
from include.local import environment, java
from include.local.broker import create_topic
from include.settings import from_environment
from tests.conftest import ROOT, free_port
from tests.support import expected
from tests.support.jobs.process import SHORT_LIVED
from tests.support.s3 import object_lake
from tests.support.waiting import wait_until

TOPIC = "tracker-events"
TABLES = ("bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model")


def random_events(number: int, count: int = 3_000) -> list[Event]:
    """Random events from minute `number` on, which is also the seed. 3,000 events take a minute."""
    start = datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(minutes=number)
    return list(events(seed=number, count=count, start=start, per_second=50))


@dataclass(frozen=True)
class Pipeline:
    """home: SLUICE_HOME. environment: variables of every process. servers: the Kafka broker, `host:port`."""

    home: Path
    environment: dict[str, str]
    servers: str
    submitted: list[subprocess.Popen] = field(default_factory=list)
    part_numbers: Iterator[int] = field(default_factory=count)

    @property
    def log(self) -> Path:
        return self.home / "driver.log"

    def submit(self, *arguments: str) -> subprocess.Popen:
        """Start spark-submit jobs/stream.py in the background, with its output in `log`."""
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                self._command(arguments), cwd=ROOT, env=self.environment, stdout=output, stderr=subprocess.STDOUT
            )
        self.submitted.append(process)
        return process

    def stop(self) -> None:
        """Kill all submitted drivers that still run."""
        for process in self.submitted:
            if process.poll() is None:
                self.kill(process, "both")
        # An engine that is forgotten with open connections is a warning in any later test.
        self.control.dispose()

    def run(self, *arguments: str, **settings: str) -> subprocess.CompletedProcess:
        """Run spark-submit jobs/stream.py to its end, with changed `SLUICE_*` settings.

        `stdout` also holds the stderr of the job.
        """
        return self._run("stream.py", arguments, {**self.environment, **settings})

    def run_once(self) -> str:
        """Run the flows of the trackers to the present ends of their sources. Returns what the job prints."""
        result = self.run("--once", *(argument for name in TABLES for argument in ("--flow", name)))
        assert result.returncode == 0, result.stdout
        return result.stdout

    def backfill(self, *arguments: str) -> subprocess.CompletedProcess:
        """Run spark-submit jobs/backfill.py to its end."""
        return self._run("backfill.py", arguments, self.environment)

    def _run(self, job: str, arguments: tuple[str, ...], environment: dict[str, str]) -> subprocess.CompletedProcess:
        return subprocess.run(
            self._command(arguments, job),
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )

    def _command(self, arguments: tuple[str, ...], job: str = "stream.py") -> list[str]:
        return [str(Path(sys.executable).parent / "spark-submit"), str(ROOT / "jobs" / job), *arguments]

    def producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.servers, "enable.idempotence": True})

    def produce(self, events: Iterable[Event], connected_producer: Producer | None = None) -> None:
        """Send events. connected_producer: avoids the time of a new connection."""
        producer = connected_producer or self.producer()
        for event in events:
            producer.produce(TOPIC, key=event.key, value=event.value)
            producer.poll(0)
        assert producer.flush(30) == 0

    def produce_next(self, event_count: int = 500) -> None:
        """Send events of the next minute, which no test has sent yet."""
        self.produce(random_events(next(self.part_numbers), event_count))

    def stored_table(self, table: str) -> DeltaTable:
        """Raises TableNotFoundError."""
        uri, options = clients.delta_rs(locations.table_path(table, from_environment(self.environment)))
        return DeltaTable(uri, storage_options=options)

    def rows(self, table: str) -> list[dict]:
        """All rows of a table, read without Spark; empty if it does not exist."""
        try:
            return self.stored_table(table).to_pyarrow_table().to_pylist()
        except TableNotFoundError:
            return []

    def count(self, table: str) -> int:
        try:
            return self.stored_table(table).count()
        except TableNotFoundError:
            return 0

    def commits(self, *tables: str) -> int:
        """The total number of commits of these tables, or of all tables."""
        total = 0
        for table in tables or TABLES:
            with suppress(TableNotFoundError):
                total += self.stored_table(table).version()
        return total

    @property
    def lease_seconds(self) -> float:
        return float(self.environment["SLUICE_LEASE_SECONDS"])

    @property
    def control(self) -> Engine:
        return database.connect(self.environment["SLUICE_CONTROL_URL"])

    def holders(self) -> dict[str, Holder]:
        """The holders of unexpired leases, by flow."""
        with database.transaction(self.control) as connection:
            return lease.holders(connection)

    def set_desired_state(self, flow: str, state: str) -> None:
        """Set the desired state of a flow: `running` or `stopped`."""
        with database.transaction(self.control) as connection:
            connection.execute(desired.delete().where(desired.c.flow == flow))
            connection.execute(desired.insert().values(flow=flow, state=state, reason="a test"))

    def wait_until_gold_is_right(self, timeout_seconds: float = 240) -> None:
        silver, _ = expected.silver_and_quarantine(expected.messages(self.servers, TOPIC))
        expected_gold = expected.gold(silver)
        wait_until(lambda: self.gold() == expected_gold, timeout_seconds, lambda: self.log.read_text()[-3000:])

    def gold(self) -> dict:
        """The gold table in the format of `expected.gold`."""
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
        """Assert that the ledger accounts for every row."""
        result = subprocess.run(
            [sys.executable, "-m", "include.ledger", "verify"],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        assert "every row accounted for, " in result.stdout

    def assert_nothing_lost_or_doubled(self) -> None:
        """Assert that each table holds exactly the rows that plain Python computes from the topic."""
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
        quarantined = [(row["partition"], row["offset"]) for row in self.rows("quarantine.silver_tracker_readings")]
        assert len(quarantined) == len(quarantine)
        assert set(quarantined) == quarantine
        assert self.gold() == expected.gold(silver)

    def kill(self, submitted: subprocess.Popen, target: str) -> None:
        """Send SIGKILL to the driver's Python process, its JVM or both, and wait until both end.

        If there is no Python process yet, the target `python` means the JVM.
        """
        jvm = psutil.Process(submitted.pid)
        python = [child for child in jvm.children() if "stream.py" in _command_line(child)]
        for process in {"python": python or [jvm], "jvm": [jvm], "both": [jvm, *python]}[target]:
            os.kill(process.pid, signal.SIGKILL)
        submitted.wait(60)
        _, survivors = psutil.wait_procs(python, timeout=60)
        assert not survivors, "the driver's Python outlives its JVM"


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def stop_other_flows(control: Engine) -> None:
    """Stop the flows of the other examples before they start, to save CPU time."""
    other_flows = tuple(flow.flow for flow in catalog.load().flows.values() if flow.name not in TABLES)
    commands.execute(control, Command(Action.STOP, other_flows, "a test", "the trackers are enough"))


def pipeline_at(home: Path, address: str, settings: dict[str, str]) -> Pipeline:
    """Create a pipeline with an empty broker at this address."""
    create_topic(address, TOPIC, 3)
    create_topic(address, views.TOPIC, 3)
    return pipeline_without_broker(home, address, settings)


def pipeline_without_broker(home: Path, address: str, settings: dict[str, str]) -> Pipeline:
    """Create a pipeline for a broker at this address, which need not run."""
    config = from_environment(
        {
            "SLUICE_HOME": str(home),
            "SLUICE_JARS": os.environ["SLUICE_JARS"],
            "SLUICE_KAFKA": address,
            "SLUICE_LEASE_SECONDS": "10",
            **object_lake.variables(),
            **settings,
        }
    )
    java_home = java.home()
    variables = environment.process_environment(environment.write(config, java_home), java_home)
    instance = Pipeline(home, {**variables, **SHORT_LIVED}, address)
    stop_other_flows(instance.control)
    return instance


@pytest.fixture
def pipeline(tmp_path: Path, start_broker, request) -> Iterator[Pipeline]:
    """The tracker pipeline with its own empty broker and home directory. A parameter changes its settings."""
    instance = pipeline_at(tmp_path, start_broker(tmp_path / "broker", free_port()), getattr(request, "param", {}))
    yield instance
    instance.stop()


@pytest.fixture(scope="session")
def shared_pipeline(tmp_path_factory, start_broker) -> Iterator[Pipeline]:
    home = tmp_path_factory.mktemp("at-work")
    instance = pipeline_at(home, start_broker(home / "broker", free_port()), {})
    yield instance
    instance.stop()


@pytest.fixture
def at_work(shared_pipeline: Pipeline) -> Pipeline:
    """The tracker pipeline with a running driver, `submitted[-1]`, which tests share because a start is expensive.

    Tests send events with `produce_next`, and leave a driver running.
    """
    if not shared_pipeline.submitted or shared_pipeline.submitted[-1].poll() is not None:
        shared_pipeline.produce_next()
        shared_pipeline.submit()
    shared_pipeline.wait_until_gold_is_right()
    return shared_pipeline
