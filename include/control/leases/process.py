"""Operating-system processes, identified even if their process id is reused."""

import json
import os
import platform
import signal
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from include.errors import SluiceError
from include.settings import settings

KILL_TIMEOUT_SECONDS = 10
# Names the process that owns a folder of temporary files.
OWNER = "owner.json"


def boot_id() -> str:
    """The id of this boot of this machine, and of this container on it."""
    source = Path("/proc/sys/kernel/random/boot_id")
    if not source.exists():
        return f"{platform.node()}-{psutil.boot_time():.0f}"
    # Containers share the boot of their machine, and each numbers its processes from 1.
    return f"{source.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"


def _started_at(pid: int) -> float:
    """The process's start in seconds since boot, from the kernel's clock ticks, which do not follow the wall clock."""
    try:
        # Field 22 of proc(5), counted after field 2: a process name in brackets may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except FileNotFoundError:
        return float(psutil.Process(pid).create_time() - psutil.boot_time())


def _user(pid: int) -> str:
    try:
        return str(psutil.Process(pid).username())
    except psutil.Error:
        return "unknown"


@dataclass(frozen=True)
class Process:
    """One process on the machine with this boot id. started_at: in seconds since boot."""

    pid: int
    started_at: float
    boot: str

    @classmethod
    def of(cls, pid: int) -> "Process":
        return cls(pid, _started_at(pid), boot_id())

    @classmethod
    def from_json(cls, document: str) -> "Process":
        return cls(**json.loads(document))

    @classmethod
    def of_handle(cls, handle: str) -> "Process | None":
        """The process of a launcher's handle; None if the driver runs in a cluster."""
        document = json.loads(handle)
        return cls(**document) if "pid" in document else None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def is_here(self) -> bool:
        """Whether the process belongs to this boot of this machine, so that it can be inspected."""
        return self.boot == boot_id()

    @property
    def is_alive(self) -> bool:
        """True also for a stopped (SIGSTOP) process, false for a zombie."""
        try:
            is_same = self.is_here and abs(_started_at(self.pid) - self.started_at) < 0.01
            return bool(is_same and psutil.Process(self.pid).status() != psutil.STATUS_ZOMBIE)
        except (psutil.NoSuchProcess, ProcessLookupError):
            return False

    @property
    def cpu_seconds(self) -> float | None:
        """The CPU time that it has used since its start; None where nobody can see it from here."""
        try:
            times = psutil.Process(self.pid).cpu_times() if self.is_alive else None
        except psutil.Error:
            return None
        return times and times.user + times.system

    def kill(self) -> None:
        """Send SIGKILL, which ends a stopped process too, and wait for its end. Raises SluiceError if it survives."""
        try:
            if self.is_alive:
                os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        except PermissionError:
            raise SluiceError(
                f"process {self.pid} belongs to user '{_user(self.pid)}', and user '{_user(os.getpid())}' may not end "
                f"it: end it as its own user (kill -9 {self.pid}), what waits for that is tried again"
            ) from None
        deadline = time.monotonic() + KILL_TIMEOUT_SECONDS
        while self.is_alive:
            if time.monotonic() > deadline:
                raise SluiceError(
                    f"process {self.pid} of user '{_user(self.pid)}' outlives SIGKILL: its disk may hang; fix that or "
                    f"restart its machine, what waits for its end is tried again"
                )
            time.sleep(0.02)


def create_temporary_folder() -> Path:
    """Create a folder for temporary files of this process. `is_leftover` tells when it can be deleted."""
    folder = settings().temporary / f"process-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    (folder / OWNER).write_text(Process.of(os.getpid()).to_json())
    return folder


def is_leftover(folder: Path) -> bool:
    """Whether `create_temporary_folder` of a process of this machine created the folder, and that process has ended."""
    try:
        owner = Process.from_json((folder / OWNER).read_text())
    except (OSError, ValueError, TypeError):
        return False
    return owner.is_here and not owner.is_alive


@dataclass(frozen=True)
class Holder:
    """The holder of a lease: the Python process and the JVM of one Spark driver, and their host."""

    host: str
    driver: str
    python: Process
    jvm: Process

    @classmethod
    def here(cls, driver: str, jvm_pid: int) -> "Holder":
        return cls(platform.node(), driver, Process.of(os.getpid()), Process.of(jvm_pid))

    @classmethod
    def from_json(cls, document: str) -> "Holder":
        value = json.loads(document)
        return cls(value["host"], value["driver"], Process(**value["python"]), Process(**value["jvm"]))

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def cpu_seconds(self) -> float | None:
        """The CPU time of both processes; None on another machine."""
        python_seconds, jvm_seconds = self.python.cpu_seconds, self.jvm.cpu_seconds
        return None if python_seconds is None or jvm_seconds is None else python_seconds + jvm_seconds

    @property
    def is_known_dead(self) -> bool:
        """Whether one of the processes has ended: half a driver writes no batch. Known on their own machine only."""
        return self.python.is_here and not (self.python.is_alive and self.jvm.is_alive)

    def fence(self) -> None:
        """Kill both processes, first the JVM, because it commits. Raises SluiceError if one stays alive."""
        for process in (self.jvm, self.python):
            if process.is_here:
                process.kill()

    def __str__(self) -> str:
        return f"driver '{self.driver}' on {self.host} (pid {self.python.pid}, JVM {self.jvm.pid})"
