"""The platform as `make up` starts it, in a home of its own, with events flowing all the time."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psutil
from sqlalchemy import select

from include.control import lease
from include.control.process import Holder
from include.control.store import database
from include.control.store.schema import drivers, runs
from include.control.supervision import supervision
from include.examples import PRODUCER
from include.local import environment, java
from include.local.airflow import Airflow
from include.local.processes import Platform
from include.local.up import SUPERVISOR
from include.settings import Settings, from_environment
from tests.conftest import ROOT, free_port
from tests.support.jobs import SHORT_LIVED
from tests.support.oncall import OnCall
from tests.support.pipeline import Pipeline, only_trackers
from tests.support.waiting import wait_until

DRIVER = "main"
_numbers = count(1)


@dataclass(frozen=True)
class Live(Pipeline):
    """environment: of `make up`, and of whoever works by hand."""

    @classmethod
    def at(cls, home: Path, **settings: str) -> "Live":
        where = from_environment(
            {
                "SLUICE_HOME": str(home),
                "SLUICE_JARS": os.environ["SLUICE_JARS"],
                "SLUICE_KAFKA": f"127.0.0.1:{free_port()}",
                "SLUICE_AIRFLOW_PORT": str(free_port()),
                "SLUICE_LEASE_SECONDS": "10",
                **settings,
            }
        )
        java_home = java.home()
        variables = environment.of_process(environment.write(where, java_home), java_home)
        return cls(home, {**variables, **SHORT_LIVED, "SLUICE_EVENTS_PER_SECOND": "50"}, where.kafka)

    @property
    def where(self) -> Settings:
        return from_environment(self.environment)

    @property
    def platform(self) -> Platform:
        return Platform(self.home)

    @property
    def kit(self) -> Airflow:
        return Airflow(self.where, self.platform, self.environment)

    @property
    def on_call(self) -> OnCall:
        return OnCall(self.kit)

    @property
    def log(self) -> Path:
        return self.platform.log(f"driver-{DRIVER}")

    def up(self) -> None:
        """`make up`, which may be called again at any time."""
        done = self._local("up")
        if "did not come to life in" in done.stderr:
            # A busy machine takes longer than it waits.
            done = self._local("up")
        assert done.returncode == 0, done.stdout + done.stderr

    def down(self) -> None:
        self._local("down")

    def _local(self, command: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", f"include.local.{command}"],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def driver(self) -> Holder | None:
        """Who holds the lease of the supervised driver, and lives."""
        holder = self.holders().get(lease.of_driver(DRIVER))
        return holder if holder and not holder.is_known_dead else None

    def epoch(self, flow: str) -> int:
        with database.transaction(self.control) as connection:
            return lease.epoch(connection, flow)

    def wait_for_driver(self, other_than: Holder | None = None) -> Holder:
        wait_until(lambda: self.driver() not in (None, other_than), 300, self.story)
        found = self.driver()
        assert found
        return found

    def wait_for_commit(self, *tables: str) -> None:
        """Until these tables, or any, have a commit that they have not now."""
        before = self.commits(*tables)
        wait_until(lambda: self.commits(*tables) > before, 300, self.story)

    def story(self) -> str:
        """For whoever reads why a test failed."""
        with database.transaction(self.control) as connection:
            rows = [*connection.execute(select(runs)), *connection.execute(select(drivers))]
        return "\n".join([self.log.read_text()[-3000:], *map(str, rows)])

    def busy_workers(self) -> list[psutil.Process]:
        """The processes of LocalExecutor that have a task in hand, each followed by that task's own."""
        found = []
        for process in self.platform.processes():
            with suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith("airflow worker -- LocalExecutor") and "<idle>" not in title:
                    found += [process, *process.children()]
        return found

    def supervise(self) -> None:
        """Ask the supervisor to look now."""
        self.kit.trigger(SUPERVISOR, 60, lambda: None)

    def wait_for_pulse(self, timeout_seconds: float = 240) -> None:
        """Until the supervisor has done its work once more."""
        ago = supervision.pulse_seconds_ago(self.control)
        assert ago is not None
        wait_until(lambda: (supervision.pulse_seconds_ago(self.control) or 0) < ago, timeout_seconds)

    def order(self, action: str, **target: str) -> None:
        """What the on-call engineer asks for with `airflow dags trigger control.stream`; return once it was obeyed."""
        run = f"{action.replace(' ', '-')}-{next(_numbers)}"
        self.on_call.ask(run, action, **target)
        self.on_call.wait(run, "obey", "success")

    def jvms(self) -> set[int]:
        """Every JVM of this home that runs streams, supervised or not."""
        found = set()
        for process in psutil.process_iter(["name"]):
            with suppress(psutil.Error, OSError):
                if process.info["name"] == "java" and _is_driver(process):
                    is_own = process.environ().get("SLUICE_HOME") == str(self.home)
                    found |= {process.pid} if is_own else set()
        return found

    @contextmanager
    def never_two_drivers(self) -> Iterator[None]:
        """Sampled to the end of the block: at no time do two drivers live."""
        ends, most = threading.Event(), set()

        def sample() -> None:
            while not ends.wait(0.3):
                most.update({frozenset(found)} if len(found := self.jvms()) > 1 else set())

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            yield
        finally:
            ends.set()
            sampler.join()
        assert not most, f"drivers that lived side by side: {most}"

    @contextmanager
    def no_more_events(self) -> Iterator[None]:
        """The producer rests until the end of the block, so that the tables can hold all there is."""
        producer = self.platform.find(PRODUCER)
        assert producer
        command, variables = psutil.Process(producer.pid).cmdline(), psutil.Process(producer.pid).environ()
        os.kill(producer.pid, signal.SIGTERM)
        wait_until(lambda: not producer.is_alive, 30)
        try:
            yield
        finally:
            self.platform.start(PRODUCER, command, variables)

    def assert_nothing_lost_or_doubled(self) -> None:
        with self.no_more_events():
            self.wait_until_gold_is_right(timeout_seconds=300)
            super().assert_nothing_lost_or_doubled()


def _is_driver(process: psutil.Process) -> bool:
    # spark-submit first asks a JVM of the launcher's for its command line.
    command = process.cmdline()
    return "org.apache.spark.deploy.SparkSubmit" in command and "org.apache.spark.launcher.Main" not in command


@contextmanager
def running(home: Path, **settings: str) -> Iterator[Live]:
    """A platform from its start to its end."""
    made = Live.at(home, **settings)
    only_trackers(made.control)
    try:
        made.up()
        yield made
    finally:
        made.down()
