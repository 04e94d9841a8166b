"""Starts Spark drivers that live on when the Airflow task that started them ends."""

import os
import subprocess
import sys
from pathlib import Path

from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowNotFoundException

from include.control.process import Process
from include.errors import UsageError
from include.settings import ROOT, settings

CONNECTION = "spark_default"


def detached(driver: str) -> Process:
    """spark-submit the flows of `driver`, out of reach of the task's process group; its output goes to its log.

    Raises UsageError where the Spark connection is missing: the provider would silently submit to YARN.
    """
    command = [str(Path(sys.executable).parent / "spark-submit"), "--master", _master(), "--name", f"sluice {driver}"]
    command += [str(ROOT / "jobs" / "stream.py"), "--driver", driver]
    settings().logs.mkdir(parents=True, exist_ok=True)
    with log(driver).open("ab") as output:
        launched = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Process.of(launched.pid)


def log(driver: str) -> Path:
    """Where a driver writes."""
    return settings().logs / f"driver-{driver}.log"


def _master() -> str:
    try:
        connection = BaseHook.get_connection(CONNECTION)
    except AirflowNotFoundException as error:
        raise UsageError(
            f"the Airflow connection '{CONNECTION}' is missing, and without it nobody knows where Spark runs: "
            f"add it (airflow connections add {CONNECTION} --conn-type spark --conn-host 'local[*]')"
        ) from error
    if not connection.host:
        raise UsageError(
            f"the Airflow connection '{CONNECTION}' has no host: set it to a Spark master, such as local[*]"
        )
    return f"{connection.host}:{connection.port}" if connection.port else connection.host
