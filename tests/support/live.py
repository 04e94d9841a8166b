"""The platform as `make up` starts it, in its own home directory, with a continuous flow of events."""

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

from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import drivers, runs
from include.control.supervision import supervisor_presence
from include.examples import PRODUCER
from include.local import environment, java
from include.local.airflow import Airflow
from include.local.processes import Platform
from include.local.up import SUPERVISOR
from include.settings import Settings, from_environment
from tests.conftest import ROOT, free_port
from tests.support.jobs.process import SHORT_LIVED
from tests.support.oncall import OnCall
from tests.support.pipeline import Pipeline, stop_other_flows
from tests.support.waiting import wait_until

DRIVER = "main"
# The home of a person who names folders as people do, 200 characters long.
ODD_NAME = 'Zuhause "von Käufer\'s" 1 (x); & '.ljust(200, "x")
_run_numbers = count(1)


@dataclass(frozen=True)
class Live(Pipeline):
    """environment: variables of `make up` and of commands in a shell."""

    @classmethod
    def at(cls, home: Path, **settings: str) -> "Live":
        config = from_environment(
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
        variables = environment.process_environment(environment.write(config, java_home), java_home)
        return cls(home, {**variables, **SHORT_LIVED, "SLUICE_EVENTS_PER_SECOND": "50"}, config.kafka)

    @property
    def config(self) -> Settings:
        return from_environment(self.environment)

    @property
    def platform(self) -> Platform:
        return Platform(self.home)

    @property
    def airflow(self) -> Airflow:
        return Airflow(self.config, self.platform, self.environment)

    @property
    def on_call(self) -> OnCall:
        return OnCall(self.airflow)

    @property
    def log(self) -> Path:
        return self.platform.log(f"driver-{DRIVER}")

    def up(self) -> None:
        """Run `make up`, which is idempotent."""
        result = self._run_local("up")
        assert result.returncode == 0, result.stdout + result.stderr

    def down(self) -> None:
        self._run_local("down")

    def status(self) -> str:
        """What `make status` prints."""
        result = self._run_local("status")
        return result.stdout + result.stderr

    def _run_local(self, command: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, "-m", f"include.local.{command}"],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
        )

    def driver(self) -> Holder | None:
        """The holder of the supervised driver's lease; None if the holder is dead."""
        holder = self.holders().get(lease.driver_lease(DRIVER))
        return holder if holder and not holder.is_known_dead else None

    def epoch(self, flow: str) -> int:
        with database.transaction(self.control) as connection:
            return lease.epoch(connection, flow)

    def wait_for_driver(self, other_than: Holder | None = None) -> Holder:
        wait_until(lambda: self.driver() not in (None, other_than), 300, self.diagnostics)
        holder = self.driver()
        assert holder
        return holder

    def wait_for_commit(self, *tables: str) -> None:
        """Wait for a new commit of these tables, or of any table."""
        initial_commits = self.commits(*tables)
        wait_until(lambda: self.commits(*tables) > initial_commits, 300, self.diagnostics)

    def diagnostics(self) -> str:
        """Diagnostics for the message of a failed test."""
        with database.transaction(self.control) as connection:
            rows = [*connection.execute(select(runs)), *connection.execute(select(drivers))]
        return "\n".join([self.log.read_text()[-3000:], *map(str, rows)])

    def busy_workers(self) -> list[psutil.Process]:
        """The busy worker processes of LocalExecutor, each followed by the processes of its task."""
        workers = []
        for process in self.platform.processes():
            with suppress(psutil.Error):
                title = " ".join(process.cmdline())
                if title.startswith("airflow worker -- LocalExecutor") and "<idle>" not in title:
                    workers += [process, *process.children()]
        return workers

    def trigger_supervisor(self) -> None:
        """Trigger a run of the supervisor."""
        self.airflow.trigger(SUPERVISOR, 60, lambda: None)

    def wait_for_supervisor(self, timeout_seconds: float = 240) -> None:
        """Wait until the supervisor completes another run."""
        age_seconds = supervisor_presence.read(self.control).worked_seconds_ago
        assert age_seconds is not None
        wait_until(
            lambda: (supervisor_presence.read(self.control).worked_seconds_ago or 0) < age_seconds, timeout_seconds
        )

    def run_command(self, action: str, **target: str) -> None:
        """Trigger `control.stream` as the on-call engineer does, and wait until its task succeeds."""
        run = f"{action.replace(' ', '-')}-{next(_run_numbers)}"
        self.on_call.trigger_control(run, action, **target)
        self.on_call.wait(run, "obey", "success")

    def jvms(self) -> set[int]:
        """The pids of all driver JVMs of this home directory, supervised or not."""
        pids = set()
        for process in psutil.process_iter(["name"]):
            with suppress(psutil.Error, OSError):
                if process.info["name"] == "java" and _is_driver(process):
                    is_of_this_home = process.environ().get("SLUICE_HOME") == str(self.home)
                    pids |= {process.pid} if is_of_this_home else set()
        return pids

    @contextmanager
    def never_two_drivers(self) -> Iterator[None]:
        """Sample the driver JVMs during the block, and assert that two never live at the same time."""
        finished, violations = threading.Event(), set()

        def sample() -> None:
            while not finished.wait(0.3):
                violations.update({frozenset(pids)} if len(pids := self.jvms()) > 1 else set())

        sampler = threading.Thread(target=sample)
        sampler.start()
        try:
            yield
        finally:
            finished.set()
            sampler.join()
        assert not violations, f"drivers that lived side by side: {violations}"

    @contextmanager
    def no_more_events(self) -> Iterator[None]:
        """Stop the producer during the block, so that the tables can catch up."""
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
    # spark-submit first starts a JVM (`launcher.Main`) that prints the command line of the driver.
    command = process.cmdline()
    return "org.apache.spark.deploy.SparkSubmit" in command and "org.apache.spark.launcher.Main" not in command


@contextmanager
def running_platform(home: Path, **settings: str) -> Iterator[Live]:
    """Start a platform, and stop it at the end of the block."""
    live = Live.at(home, **settings)
    stop_other_flows(live.control)
    try:
        live.up()
        yield live
    finally:
        live.down()
        live.control.dispose()
