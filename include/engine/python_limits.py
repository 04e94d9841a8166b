"""Limits memory and time of the Python functions of a transform."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from include.engine.session import jvm_of
from include.errors import FlowBroken, FlowFailed, SluiceError
from include.spec import PythonLimits, Table

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


def require_limits(rows: DataFrame, table: Table) -> None:
    """Raises FlowBroken if a Python function computes rows of a table without limits, because nothing would end it.

    The check refuses such a table. It does not see a function that the transform calls elsewhere only.
    """
    patterns = jvm_of(rows.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern
    plan = rows._jdf.queryExecution().analyzed()
    if table.python is None and plan.containsPattern(patterns.withName("PYTHON_UDF")):
        raise FlowBroken(
            f"{table.name}: its transform runs a Python function without limits: declare them, "
            f"python=PythonLimits(memory_mb=1024, seconds=60), or use Spark's own functions, and restart",
            "PYTHON_WITHOUT_LIMITS",
        )


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


@contextmanager
def limited(spark: SparkSession, limits: PythonLimits | None, flow: str, batch: int) -> Iterator[None]:
    """Does nothing for a table without Python functions. Raises FlowFailed for a batch that takes too long."""
    if limits is None:
        yield
        return
    with limit_time(spark, limits.seconds) as is_over:
        try:
            yield
        except SluiceError:
            raise
        except Exception as error:
            if is_over.is_set():
                raise _too_long(flow, batch, limits) from error
            raise


def is_too_large(cause: str) -> bool:
    """Whether a Python function has failed with this exception because of its memory."""
    return cause.partition(":")[0].endswith("MemoryError")


def _too_long(flow: str, batch: int, limits: PythonLimits) -> FlowFailed:
    return FlowFailed(
        f"{flow}: batch {batch} was ended after {limits.seconds:g} s, the limit of its Python functions: let "
        f"them do less, read smaller batches (max_files, max_offsets), or allow more, PythonLimits(seconds=...)",
        "PYTHON_TIME_LIMIT",
    )


def too_large(owner: str, work: str, limits: PythonLimits, cause: str) -> FlowBroken:
    """owner: begins the sentence. work: what is processed, "batch 7", say."""
    return FlowBroken(
        f"{owner}: a Python function needs more for {work} than its limit of {limits.memory_mb} MB "
        f"({cause}): let it use less, or allow more, PythonLimits(memory_mb=...), and restart",
        "PYTHON_MEMORY_LIMIT",
    )
