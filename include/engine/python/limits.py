"""Limits memory and time of the Python functions of a transform."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from include.spec import Table

# Spark hands this local property of a job to its Python processes, which limit their address space by it. Only jobs
# with the same limit share processes.
MEMORY_MB = "resource.pyspark.memory"
CANCEL_SECONDS = 1


def limit_memory(spark: SparkSession, table: Table) -> None:
    """Limits the Python processes of the Spark jobs that this thread runs from now on, if the table has limits."""
    if table.python:
        # Spark divides the memory among the cores of an executor.
        cores = int(spark.sparkContext.getConf().get("spark.executor.cores") or 1)
        spark.sparkContext.setLocalProperty(MEMORY_MB, str(table.python.memory_mb * cores))


@contextmanager
def limit_time(spark: SparkSession, seconds: float) -> Iterator[threading.Event]:
    """Cancels the Spark jobs of this thread after some seconds. Yields an event that is set when the time is over."""
    context, tag = spark.sparkContext, f"sluice {uuid.uuid4()}"
    is_over, is_done = threading.Event(), threading.Event()

    def cancel() -> None:
        if is_done.wait(seconds):
            return
        is_over.set()
        while not is_done.is_set():
            # Repeated, because the thread may be between two jobs.
            context.cancelJobsWithTag(tag)
            is_done.wait(CANCEL_SECONDS)

    timer = threading.Thread(target=cancel, daemon=True)
    context.addJobTag(tag)
    timer.start()
    try:
        yield is_over
    finally:
        is_done.set()
        timer.join()
        context.removeJobTag(tag)
