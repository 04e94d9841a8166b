"""Jobs in child processes, which a test can kill."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from tests.conftest import ROOT

# A JVM of a test is too short-lived for the second compiler. Without it, the default code cache of 48 MB is too small
# for a driver of many flows.
SHORT_LIVED = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}


class Job:
    """A module of the tests that runs as a job in a child process."""

    def __init__(self, home: Path, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self.log = home / f"job-{os.urandom(3).hex()}.log"
        with self.log.open("ab") as output:
            variables = {**os.environ, **SHORT_LIVED}
            self.process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT)

    def wait(self, timeout_seconds: float = 500) -> int:
        return self.process.wait(timeout_seconds)

    def kill_when(self, condition: Callable[[], object]) -> None:
        """Send SIGKILL to its JVM and its Python process as soon as the condition holds."""
        deadline = threading.Event()
        timer = threading.Timer(500, deadline.set)
        timer.start()
        # wait_until polls only five times a second. The wait lets a driver thread of this process run.
        while not condition():
            deadline.wait(0.02)
            assert self.process.poll() is None, self.log.read_text()
            assert not deadline.is_set(), self.log.read_text()
        timer.cancel()
        processes = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.process.wait(60)

    def end(self) -> None:
        """Ends it as `make down` does, and waits. Harmless if it has ended."""
        self.process.terminate()
        self.wait()
