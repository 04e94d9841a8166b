"""The processes that `make up` starts, and their descendants.

Each process inherits the marker `SLUICE_PLATFORM=<home>` in its environment. The marker identifies the processes of a
platform, even after their parent was killed.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from include.control.leases.process import Process
from include.errors import SetupError

MARKER = "SLUICE_PLATFORM"
# The next round finds a process that was forked while the others were stopped.
STOP_ROUNDS = 5
ORPHAN_GRACE_SECONDS = 5
# What still moves after so many times the allowed standstill does not become ready.
LONGEST_STANDSTILLS = 5


@dataclass(frozen=True)
class Platform:
    """The processes of one home directory."""

    home: Path

    def log(self, name: str) -> Path:
        return self.home / "log" / f"{name}.log"

    def logged_bytes(self, *names: str) -> int:
        """The size of these logs."""
        return sum(self.log(name).stat().st_size for name in names if self.log(name).exists())

    def last_lines(self, name: str, count: int = 20) -> str:
        """The last lines of its log."""
        log = self.log(name)
        return "\n".join(log.read_text(errors="replace").splitlines()[-count:]) if log.exists() else "(no log)"

    def start(self, name: str, command: list[str], environment: dict[str, str]) -> Process:
        """Start `command` in a new session, and append its output to the log of `name`."""
        self.log(name).parent.mkdir(parents=True, exist_ok=True)
        with self.log(name).open("a") as log:
            popen = subprocess.Popen(
                command,
                env={**environment, MARKER: str(self.home)},
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = Process.of(popen.pid)
        self._record_path(name).parent.mkdir(parents=True, exist_ok=True)
        self._record_path(name).write_text(process.to_json())
        return process

    def find(self, name: str) -> Process | None:
        """The process with this name, if it is alive."""
        process = self._read_record(name)
        return process if process and process.is_alive else None

    def names(self) -> list[str]:
        """The names of all processes that were started and not stopped since, alive or not."""
        return sorted(record.stem for record in (self.home / "run").glob("*.json"))

    def require(self, names: list[str]) -> None:
        """Raises SetupError, with the last lines of the log, if one of them has died."""
        for name in names:
            if not self.find(name):
                raise SetupError(
                    f"the process '{name}' died: read {self.log(name)}, fix the cause, then `make up` again; "
                    f"it ended with\n{self.last_lines(name)}"
                )

    def processes(self) -> list[psutil.Process]:
        """All living processes with the marker, with or without a record."""
        processes = []
        for process in psutil.process_iter():
            try:
                has_marker = process.environ().get(MARKER) == str(self.home)
                if has_marker and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    processes.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                continue
        return processes

    def stop(self, grace_seconds: float, spare: Collection[str] = (), first: str | None = None) -> int:
        """Send SIGTERM to all processes, and SIGKILL to those that remain after `grace_seconds`.

        spare: names of processes that keep running. first: name of the process that gets its signal before the others,
        so that it does not replace them. Returns the number of stopped processes. Raises SetupError if a process
        survives SIGKILL.
        """
        spared = {process.pid for name in spare if (process := self.find(name))}
        leader = self.find(first) if first else None
        stopped: set[psutil.Process] = set()
        for _ in range(STOP_ROUNDS):
            remaining = [process for process in self.processes() if process.pid not in spared]
            if not remaining:
                return len(stopped)
            remaining.sort(key=lambda process: not leader or process.pid != leader.pid)
            stopped.update(remaining)
            _terminate(remaining, grace_seconds)
        raise SetupError(f"process {remaining[0].pid} ({remaining[0].name()}) cannot be stopped: end it by hand")

    def forget(self) -> None:
        """Remove the records of dead processes, and end the processes that they left behind."""
        for name in self.names():
            if not self.find(name):
                _terminate(self._orphans(name), ORPHAN_GRACE_SECONDS)
                self._record_path(name).unlink()

    def _orphans(self, name: str) -> list[psutil.Process]:
        """The other processes of its session. While they live, the kernel does not reuse the session id."""
        leader = self._read_record(name)
        if not leader or not leader.is_here or psutil.pid_exists(leader.pid):
            return []
        return [process for process in self.processes() if _session_id(process) == leader.pid]

    def _read_record(self, name: str) -> Process | None:
        try:
            return Process.from_json(self._record_path(name).read_text())
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def _record_path(self, name: str) -> Path:
        return self.home / "run" / f"{name}.json"


class StallTimer:
    """Ends a wait on a machine of any speed: when nothing has moved for some seconds, at the latest after
    `LONGEST_STANDSTILLS` times as long.
    """

    def __init__(self, seconds: float, movement: Callable[[], object], clock: Callable[[], float] = time.monotonic):
        """movement: returns another value whenever something has moved, such as the size of a log."""
        self.seconds = seconds
        self._movement, self._clock = movement, clock
        self._last, self._moved_at = movement(), clock()
        self._ends_at = self._moved_at + LONGEST_STANDSTILLS * seconds

    @property
    def is_over(self) -> bool:
        now, current = self._clock(), self._movement()
        if current != self._last:
            self._last, self._moved_at = current, now
        return now > min(self._moved_at + self.seconds, self._ends_at)


def wait_for_port(port: int, timer: StallTimer, check: Callable[[], None], failure: str) -> None:
    """Wait until a process accepts connections on 127.0.0.1. Calls `check`, which may raise.

    Raises SetupError with the sentence `failure` when the timer is over.
    """
    while not _accepts(port):
        check()
        if timer.is_over:
            raise SetupError(failure)
        time.sleep(0.1)


def _accepts(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _terminate(processes: list[psutil.Process], grace_seconds: float) -> None:
    for process in processes:
        _signal(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while time.monotonic() < deadline and any(_is_alive(process) for process in processes):
        time.sleep(0.05)
    for process in processes:
        _signal(process, signal.SIGKILL)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and any(_is_alive(process) for process in processes):
        time.sleep(0.05)


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        process.send_signal(number)


def _session_id(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


def _is_alive(process: psutil.Process) -> bool:
    # A zombie does no work. It may wait for its parent for long, which in a container may be process 1.
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
