"""The engines that are compared, each a process of its own in a home of its own, watched from outside."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks import measure
from include.errors import SetupError
from include.ledger import checkpoint
from include.local import java
from include.local.broker import Broker
from include.settings import ROOT, settings

POLL_SECONDS = 0.05
JOBS = ROOT / "benchmarks"


class Engine:
    """A job of `benchmarks` with one flow for each layer it was started with.

    root: the checkout whose `include` it runs.
    """

    def __init__(self, name: str, home: Path, job: str, kafka: str = "", root: Path = ROOT) -> None:
        self.name, self.home = name, home
        self._job, self._log = job, home / "job.log"
        self._process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True)
        (home / "tmp").mkdir()
        own = {"SLUICE_HOME": str(home), "SLUICE_JARS": str(settings().jars), "SLUICE_KAFKA": kafka, "TZ": "UTC"}
        own |= {"SLUICE_LANDING": "", "SLUICE_VENV": sys.prefix, "PYTHONPATH": str(root), "TMPDIR": str(home / "tmp")}
        own |= {"JAVA_HOME": str(java.home()), "SPARK_LOCAL_DIRS": str(home / "tmp"), "SPARK_LOCAL_IP": "127.0.0.1"}
        foreign = ("SLUICE_CONTROL_URL", "SPARK_CONF_DIR")
        self._environment = {name: it for name, it in os.environ.items() if name not in foreign} | own

    def start(self, *arguments: str) -> None:
        command = [sys.executable, "-P", str(JOBS / self._job), *arguments]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, env=self._environment, cwd=self.home, stdout=log, stderr=log)

    def cpu_seconds(self) -> float:
        """Python and the JVM, and what they start, since the start of the job."""
        assert self._process
        return measure.tree_cpu_seconds(self._process.pid)

    @property
    def pid(self) -> int:
        assert self._process
        return self._process.pid

    def table(self, name: str) -> Path:
        return self.home / "lake" / Path(*name.split("."))

    def batches(self, flow: str) -> int:
        """How many of a flow are done."""
        newest = checkpoint.last_committed(self._checkpoint(flow))
        return 0 if newest is None else newest + 1

    def wait(self, flow: str, end: int, timeout_seconds: float = 300) -> None:
        """Until the flow has read its source to `end`: a version of a table, or a count of records of a topic."""
        deadline = time.monotonic() + timeout_seconds
        while self.position(flow) < end:
            if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                last = self._log.read_text(errors="replace")[-3000:]
                raise SetupError(f"{self.name}: {flow} is at {self.position(flow)} and has to reach {end}:\n{last}")
            time.sleep(POLL_SECONDS)

    def position(self, flow: str) -> int:
        path = self._checkpoint(flow)
        newest = checkpoint.last_committed(path)
        if newest is None:
            return -1
        end = checkpoint.end_offset(path, newest)
        if "reservoirVersion" in end:
            return checkpoint.read_version(end)
        return sum(offset for partitions in end.values() for offset in partitions.values())

    def end(self) -> None:
        """Kill it, with its JVM."""
        if self._process is None:
            return
        with suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.pid)
            for process in [*family.children(recursive=True), family]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()
        self._process = None

    def _checkpoint(self, flow: str) -> Path:
        return self.home / "checkpoints" / flow / "1"


@contextmanager
def homes() -> Iterator[Path]:
    """A folder for the homes of engines; it is deleted at the end, as the engines are by whoever started them."""
    # Else SIGTERM would leave them behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as folder:
        yield Path(folder)


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """A Kafka broker in that folder; its address."""
    made = Broker(folder / "kafka", settings().jars, java.home(), free_port(), free_port())
    made.prepare()
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen(made.command(), stdout=log, stderr=log)
    try:
        made.wait(timeout_seconds=60)
        yield made.address
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
