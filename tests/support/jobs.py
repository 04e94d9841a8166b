"""Jobs that are killed."""

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

# For a JVM that does not live long enough to win back what the second compiler takes. The first alone has a cache of
# 48 MB, which a driver of many flows fills, and then it dies.
SHORT_LIVED = {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"}


class Job:
    """A module of the tests as a job, in processes of its own."""

    def __init__(self, home: Path, module: str, *arguments: str) -> None:
        command = [sys.executable, "-m", module, *arguments]
        self.log = home / f"job-{os.urandom(3).hex()}.log"
        with self.log.open("ab") as output:
            variables = {**os.environ, **SHORT_LIVED}
            self.process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=output, stderr=subprocess.STDOUT)

    def wait(self) -> int:
        return self.process.wait(500)

    def kill_when(self, condition: Callable[[], object]) -> None:
        """SIGKILL to its JVM and its Python at the moment at which the condition holds."""
        deadline = threading.Event()
        timer = threading.Timer(500, deadline.set)
        timer.start()
        # Not wait_until, which looks five times a second; and the driver in this process needs its turn.
        while not condition():
            deadline.wait(0.02)
            assert self.process.poll() is None, self.log.read_text()
            assert not deadline.is_set(), self.log.read_text()
        timer.cancel()
        halves = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        for half in halves:
            with suppress(ProcessLookupError):
                os.kill(half.pid, signal.SIGKILL)
        self.process.wait(60)
