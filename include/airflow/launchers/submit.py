"""Drivers on this machine, and submissions to a cluster: spark-submit as a process that outlives its Airflow task.

It runs in a session of its own, so that signals to the task do not reach it.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import psutil
from sqlalchemy.engine import make_url

from include.control.leases.process import Process
from include.errors import UsageError
from include.retention import LOG_BYTES
from include.secret_variables import without_airflow
from include.settings import ROOT, kafka_variables, settings

SPARK_SUBMIT = Path(sys.executable).parent / "spark-submit"
JOB = ROOT / "jobs" / "stream.py"
# A closed list: any other setting may be a secret.
HANDED_ON = tuple(
    f"SLUICE_{name}"
    for name in (
        *("LEASE_SECONDS", "EXAMPLES", "FAST_PATH", "PLATFORM", "EXECUTORS", "LOG_FORMAT"),
        *("SCHEMA_REGISTRY", "SCHEMA_REGISTRY_CREDENTIALS"),
    )
)


def start_detached(
    driver: str, options: list[str], job: str = str(JOB), arguments: Sequence[str] | None = None
) -> Process:
    """Start spark-submit for a job, by default for the flows of `driver`. Its output is appended to `log(driver)`."""
    words = [job, *(("--driver", driver) if arguments is None else arguments)]
    with _open_log(driver) as output:
        submitter = subprocess.Popen(
            [str(SPARK_SUBMIT), *options, "--name", f"sluice {driver}", *words],
            cwd=ROOT,
            env={
                **without_airflow(os.environ),
                **utf8(os.environ),
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Process.of(submitter.pid)


def utf8(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variable by which Java spells names of files as UTF-8, if it would not. It opens no other names."""
    chosen = next(filter(None, (environment.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    return {} if re.search("utf-?8", chosen, re.IGNORECASE) else {"LC_ALL": "C.UTF-8"}


def kill_tree(root: Process) -> None:
    """Kill the JVM first, because it commits, then the processes it has started. Raises SluiceError if one survives."""
    children: list[Process] = []
    with suppress(psutil.NoSuchProcess):
        if root.is_alive:
            for child in psutil.Process(root.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess, ProcessLookupError):
                    children.append(Process.of(child.pid))
    for process in (root, *children):
        process.kill()


def settings_to_hand_on(password_source: str) -> dict[str, str]:
    """The settings of a driver that another machine starts; defaults that depend on this machine are explicit.

    password_source: where that driver finds the password of the control database, in words.
    Raises UsageError if a setting holds a password: command lines are public, and so are requests without TLS.
    """
    current = settings()
    url = make_url(current.control_url)
    if url.password or any("password" in name for name in url.query):
        raise UsageError(
            "SLUICE_CONTROL_URL holds a password, which others could read on its way to the driver: leave it out of "
            f"the URL, and give it to Airflow as PGPASSWORD and to the driver by {password_source}"
        )
    variables = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
    resolved = {
        "SLUICE_HOME": current.home,
        "SLUICE_LAKE": current.lake,
        "SLUICE_JARS": current.jars,
        "SLUICE_LANDING": current.landing,
        "SLUICE_CONTROL_URL": current.control_url,
    }
    return variables | {name: str(value) for name, value in resolved.items()} | kafka_variables(current)


def environment(prefix: str, password_source: str) -> dict[str, str]:
    """`settings_to_hand_on` as Spark properties. Raises UsageError, too, if the control database is a file."""
    if make_url(settings().control_url).get_backend_name() == "sqlite":
        raise UsageError(
            "SLUICE_CONTROL_URL is SQLite, a file that a driver on another machine cannot share: set it to a PostgreSQL"
        )
    return {prefix + name: value for name, value in settings_to_hand_on(password_source).items()}


def properties(conf: Mapping[str, str]) -> list[str]:
    """Spark properties as options of spark-submit."""
    return [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]


def log(driver: str) -> Path:
    """The log file of the driver's spark-submit."""
    return settings().logs / f"driver-{driver}.log"


def _open_log(driver: str) -> BinaryIO:
    file = log(driver)
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.stat().st_size > LOG_BYTES:
        file.replace(f"{file}.1")
    return file.open("ab")


@dataclass(frozen=True)
class Local:
    """options: further spark-submit options for the master."""

    master: str
    options: tuple[str, ...] = ()

    def launch(self, driver: str) -> str:
        executors = ["--conf", f"spark.executor.extraClassPath={settings().spark_class_path}"]
        return start_detached(driver, ["--master", self.master, *executors, *self.options]).to_json()

    def is_alive(self, handle: str) -> bool:
        return Process.from_json(handle).is_alive

    def kill(self, handle: str) -> None:
        kill_tree(Process.from_json(handle))

    def log(self, driver: str, handle: str) -> str:
        return str(log(driver))
