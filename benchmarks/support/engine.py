"""The engines of a comparison, each with its own processes and home directory, measured from outside."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from benchmarks.support import measure
from benchmarks.support.measure import Sample
from include.checkpoints import checkpoint_files
from include.errors import SetupError
from include.local import java
from include.local.broker import Broker
from include.settings import ROOT, settings

POLL_SECONDS = 0.05
JOBS = ROOT / "benchmarks" / "jobs"


class Engine:
    """Jobs of `benchmarks` over one lake. Each job runs a flow for each of its layers.

    root: the checkout whose `include` the jobs import.
    """

    def __init__(self, name: str, home: Path, job: str, kafka: str = "", root: Path = ROOT) -> None:
        self.name, self.home = name, home
        self._job, self._log = job, home / "jobs.log"
        self._processes: list[subprocess.Popen[bytes]] = []
        (home / "tmp").mkdir(parents=True)
        variables = {"SLUICE_HOME": str(home), "SLUICE_JARS": str(settings().jars), "SLUICE_KAFKA": kafka, "TZ": "UTC"}
        variables |= {
            "SLUICE_LANDING": "",
            "SLUICE_VENV": sys.prefix,
            "PYTHONPATH": str(root),
            "TMPDIR": str(home / "tmp"),
        }
        variables |= {
            "JAVA_HOME": str(java.home()),
            "SPARK_LOCAL_DIRS": str(home / "tmp"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        removed = ("SLUICE_CONTROL_URL", "SPARK_CONF_DIR")
        self._environment = {name: value for name, value in os.environ.items() if name not in removed} | variables

    def start(self, *arguments: str) -> None:
        """Start another job."""
        command = [sys.executable, "-P", str(JOBS / self._job), *arguments]
        with self._log.open("ab") as log:
            process = subprocess.Popen(command, env=self._environment, cwd=self.home, stdout=log, stderr=log)
        self._processes.append(process)

    def run(self, *arguments: str) -> measure.Spent:
        """Run a job to its end. Raises SetupError if it fails."""
        self.start(*arguments)
        first = last = Sample.of(self.cpu_seconds)
        started: set[psutil.Process] = set()
        while self._processes[-1].poll() is None:
            time.sleep(4 * POLL_SECONDS)
            with suppress(psutil.NoSuchProcess):
                started.update(psutil.Process(self._processes[-1].pid).children(recursive=True))
            # The CPU time of a process is unknown after its end, so a decreasing sum is ignored.
            if (sample := Sample.of(self.cpu_seconds)).cpu >= last.cpu:
                last = sample
        spent = replace(last.since(first), cpu_seconds=last.cpu)
        # A JVM outlives its Python process for a moment, while it deletes temporary files.
        psutil.wait_procs(started, timeout=60)
        if self._processes.pop().returncode:
            raise SetupError(f"{self.name} failed at {' '.join(arguments)}:\n{self._last_lines()}")
        return spent

    def cpu_seconds(self) -> float:
        """CPU seconds of all jobs since their start, with their descendants."""
        return sum(measure.tree_cpu_seconds(process.pid) for process in self._processes)

    def bytes_used(self) -> int:
        return sum(measure.tree_bytes(process.pid) for process in self._processes)

    def table(self, name: str) -> Path:
        return self.home / "lake" / Path(*name.split("."))

    def checkpoint(self, flow: str) -> Path:
        return self.home / "checkpoints" / flow / "1"

    def batches(self, flow: str) -> int:
        """The number of committed batches of a flow."""
        newest = checkpoint_files.last_committed(self.checkpoint(flow))
        return 0 if newest is None else newest + 1

    def wait(self, flow: str, end: int, timeout_seconds: float = 300) -> None:
        """Wait until the flow has read its source to `end`: a version of a table, or a number of records of a topic."""
        self._wait(lambda: self.position(flow), f"{flow} should read to", end, timeout_seconds)

    def wait_for_batches(self, flow: str, count: int, timeout_seconds: float = 300) -> None:
        """Wait until the flow has committed so many batches."""
        self._wait(lambda: self.batches(flow), f"the batches of {flow} should be", count, timeout_seconds)

    def _wait(self, current: Callable[[], int], what: str, end: int, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while current() < end:
            has_died = any(process.poll() is not None for process in self._processes)
            if has_died or time.monotonic() > deadline:
                raise SetupError(f"{self.name}: {what} {end}, is at {current()}:\n{self._last_lines()}")
            time.sleep(POLL_SECONDS)

    def position(self, flow: str) -> int:
        """The position of a flow in its source; -1 before the first committed batch."""
        newest = checkpoint_files.last_committed(self.checkpoint(flow))
        return -1 if newest is None else place(checkpoint_files.end_offset(self.checkpoint(flow), newest))

    def end(self) -> None:
        """Kill all jobs and their JVMs."""
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                parent = psutil.Process(process.pid)
                for member in [*parent.children(recursive=True), parent]:
                    with suppress(psutil.NoSuchProcess):
                        member.kill()
            process.wait()
        self._processes = []

    def _last_lines(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def place(offset: dict[str, Any]) -> int:
    """A source offset as a number: the version of a table, or the number of records of a topic before it."""
    if "reservoirVersion" in offset:
        return checkpoint_files.read_version(offset)
    return sum(position for partitions in offset.values() for position in partitions.values())


@contextmanager
def homes() -> Iterator[Path]:
    """A temporary folder for the home directories of engines. The caller must end the engines."""
    # SIGTERM without a handler would leave the engines running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        yield Path(folder)


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run a Kafka broker in this folder. Yields its address."""
    instance = Broker(folder / "kafka", settings().jars, java.home(), free_port(), free_port())
    instance.prepare()
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen(instance.command(), stdout=log, stderr=log)
    try:
        instance.wait(timeout_seconds=60)
        yield instance.address
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
