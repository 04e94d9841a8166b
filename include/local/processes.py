"""The processes that `make up` starts, and all that they start in turn.

Each carries the marker `SLUICE_PLATFORM=<home>` in its environment and hands it down, so that what belongs to a
platform can be told from what does not, also after its parent was killed.
"""

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from include.control.process import Process
from include.errors import SetupError

MARKER = "SLUICE_PLATFORM"
# A process that is forked while the others are being stopped shows up in the next round.
STOP_ROUNDS = 5
ORPHAN_GRACE_SECONDS = 5


@dataclass(frozen=True)
class Platform:
    """The processes of one home directory."""

    home: Path

    def log(self, name: str) -> Path:
        return self.home / "log" / f"{name}.log"

    def last_lines(self, name: str, count: int = 20) -> str:
        """The end of its log."""
        log = self.log(name)
        return "\n".join(log.read_text(errors="replace").splitlines()[-count:]) if log.exists() else "(no log)"

    def start(self, name: str, command: list[str], environment: dict[str, str]) -> Process:
        """Start `command` in a session of its own, its output appended to the log of `name`."""
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
        self._record(name).parent.mkdir(parents=True, exist_ok=True)
        self._record(name).write_text(process.to_json())
        return process

    def find(self, name: str) -> Process | None:
        """The process that was started under this name, where it still lives."""
        process = self._recorded(name)
        return process if process and process.is_alive else None

    def names(self) -> list[str]:
        """Everything that was started and not stopped since, alive or not."""
        return sorted(record.stem for record in (self.home / "run").glob("*.json"))

    def require(self, names: list[str]) -> None:
        """Raises SetupError where one of them has died, with the end of its log."""
        for name in names:
            if not self.find(name):
                raise SetupError(
                    f"the process '{name}' died: read {self.log(name)}, mend the cause, then `make up` again; "
                    f"it ended with\n{self.last_lines(name)}"
                )

    def processes(self) -> list[psutil.Process]:
        """Every living process that carries the marker, also those that nobody recorded."""
        found = []
        for process in psutil.process_iter():
            try:
                carries = process.environ().get(MARKER) == str(self.home)
                if carries and process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                continue
        return found

    def stop(self, grace_seconds: float, spare: str | None = None, first: str | None = None) -> int:
        """SIGTERM to all but the process named `spare`, SIGKILL to what is left after `grace_seconds`.

        first: the process that gets its signal before the others, so that it starts nothing in their place.
        Returns how many were stopped. Raises SetupError where something outlives SIGKILL.
        """
        spared = self.find(spare) if spare else None
        leader = self.find(first) if first else None
        stopped: set[psutil.Process] = set()
        for _ in range(STOP_ROUNDS):
            left = [process for process in self.processes() if not spared or process.pid != spared.pid]
            if not left:
                return len(stopped)
            left.sort(key=lambda process: not leader or process.pid != leader.pid)
            stopped.update(left)
            _end(left, grace_seconds)
        raise SetupError(f"process {left[0].pid} ({left[0].name()}) cannot be stopped: end it by hand")

    def forget(self) -> None:
        """Remove the records of what no longer runs, and end what that left behind."""
        for name in self.names():
            if not self.find(name):
                _end(self._orphans(name), ORPHAN_GRACE_SECONDS)
                self._record(name).unlink()

    def _orphans(self, name: str) -> list[psutil.Process]:
        """The rest of its session. Until that is gone, the kernel gives its number to nobody else."""
        leader = self._recorded(name)
        if not leader or not leader.is_here or psutil.pid_exists(leader.pid):
            return []
        return [process for process in self.processes() if _session(process) == leader.pid]

    def _recorded(self, name: str) -> Process | None:
        try:
            return Process.from_json(self._record(name).read_text())
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def _record(self, name: str) -> Path:
        return self.home / "run" / f"{name}.json"


def _end(processes: list[psutil.Process], grace_seconds: float) -> None:
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


def _session(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except ProcessLookupError:
        return None


def _is_alive(process: psutil.Process) -> bool:
    # A zombie waits for its parent, which may be this very machine's first process: it will do no more harm.
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
