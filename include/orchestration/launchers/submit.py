"""spark-submit in a session of its own, out of reach of what ends the Airflow task that called it."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import psutil

from include.control.process import Process
from include.retention import LOG_BYTES
from include.settings import ROOT, settings

SPARK_SUBMIT = Path(sys.executable).parent / "spark-submit"
JOB = ROOT / "jobs" / "stream.py"


def detached(driver: str, options: list[str]) -> Process:
    """Begin to submit the flows of `driver`; what it says is appended to `log(driver)`."""
    with _open_log(driver) as output:
        launched = subprocess.Popen(
            [str(SPARK_SUBMIT), *options, "--name", f"sluice {driver}", str(JOB), "--driver", driver],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Process.of(launched.pid)


def end(launched: Process) -> None:
    """End the JVM first, because that commits, then what it had started."""
    started: list[Process] = []
    with suppress(psutil.NoSuchProcess):
        if launched.is_alive:
            for child in psutil.Process(launched.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    started.append(Process.of(child.pid))
    for process in (launched, *started):
        process.kill()


def settings_to_hand_on() -> dict[str, str]:
    """Every `SLUICE_*` variable of this process, with those that depend on where it runs spelled out."""
    where = settings()
    given = {name: value for name, value in os.environ.items() if name.startswith("SLUICE_")}
    resolved = {
        "SLUICE_HOME": where.home,
        "SLUICE_JARS": where.jars,
        "SLUICE_LANDING": where.landing,
        "SLUICE_CONTROL_URL": where.control_url,
    }
    return given | {name: str(value) for name, value in resolved.items()}


def log(driver: str) -> Path:
    """Where spark-submit writes for `driver`."""
    return settings().logs / f"driver-{driver}.log"


def _open_log(driver: str) -> BinaryIO:
    file = log(driver)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size > LOG_BYTES:
        file.replace(f"{file}.1")
    return file.open("ab")
