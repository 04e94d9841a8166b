"""A Spark session in the home directory of a benchmark, and its CPU time."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
from pyspark.sql import SparkSession

from include.catalog import Catalog
from include.engine.session import open_session
from include.engine.stream import driver
from include.local import environment, java
from include.settings import settings


@contextmanager
def temporary_home() -> Iterator[None]:
    """A home directory that this process and its child processes use during the block."""
    jars = os.environ.get("SLUICE_JARS") or str(settings().jars)
    with tempfile.TemporaryDirectory(prefix="sluice-bench-") as home:
        settings.cache_clear()
        os.environ.setdefault("SLUICE_VENV", sys.prefix)
        os.environ.update({"SLUICE_HOME": home, "SLUICE_JARS": jars, "SLUICE_LANDING": "", "TZ": "UTC"})
        os.environ.pop("SLUICE_CONTROL_URL", None)
        os.environ.update(environment.write(settings(), java.home()))
        yield


@contextmanager
def session(catalog: Catalog) -> Iterator[SparkSession]:
    """Open a session in a temporary home directory, which child processes use, too."""
    with temporary_home():
        spark = open_session("sluice benchmark", catalog)
        yield spark
        spark.stop()


def cpu_seconds() -> float:
    """CPU seconds of this process and its JVM."""
    processes = [psutil.Process(), psutil.Process(driver.jvm_pid())]
    return sum(process.cpu_times().user + process.cpu_times().system for process in processes)
