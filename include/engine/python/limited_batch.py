"""Runs a batch within the limits of its Python functions, and explains what goes over them."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from include.engine.python.limits import limit_time
from include.errors import FlowBroken, FlowFailed, SluiceError
from include.spec import PythonLimits, Table


@contextmanager
def limited(spark: SparkSession, table: Table, batch: int) -> Iterator[None]:
    """Does nothing for a table without Python functions. Raises FlowFailed for a batch that takes too long."""
    if table.python is None:
        yield
        return
    with limit_time(spark, table.python.seconds) as is_over:
        try:
            yield
        except SluiceError:
            raise
        except Exception as error:
            if is_over.is_set():
                raise _too_long(table, batch, table.python) from error
            raise


def is_too_large(cause: str) -> bool:
    """Whether a Python function has failed with this exception because of its memory."""
    return cause.partition(":")[0].endswith("MemoryError")


def _too_long(table: Table, batch: int, limits: PythonLimits) -> FlowFailed:
    return FlowFailed(
        f"{table.flow}: batch {batch} was ended after {limits.seconds:g} s, the limit of its Python functions: let "
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
