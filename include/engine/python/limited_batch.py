"""Runs a batch within the limits of its Python functions, and explains their errors."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame

from include.engine import failure
from include.engine.python import failing_row
from include.engine.python.limits import limit_time
from include.errors import FlowBroken, FlowFailed, SluiceError
from include.spec import PythonLimits, Table


@contextmanager
def limited(rows: DataFrame, table: Table, batch: int) -> Iterator[None]:
    """Does nothing for a table without Python functions. rows: of the source.

    Raises FlowFailed for a batch that takes too long. Raises FlowBroken for functions that need too much memory, and
    for a row that makes one fail.
    """
    if table.python is None:
        yield
        return
    with limit_time(rows.sparkSession, table.python.seconds) as is_over:
        try:
            yield
            return
        except SluiceError:
            raise
        except Exception as raised:
            error = raised
    if is_over.is_set():
        raise _too_long(table, batch, table.python) from error
    cause = failure.python_error(error)
    if cause is None:
        raise error
    if cause.partition(":")[0].endswith("MemoryError"):
        raise _too_large(table, batch, table.python, cause) from error
    print(f"sluice: {table.flow}: looks for the row of batch {batch} that fails with {cause}", file=sys.stderr)
    raise _failed(table, batch, cause, failing_row.find(rows, table, table.python.seconds)) from error


def _too_long(table: Table, batch: int, limits: PythonLimits) -> FlowFailed:
    return FlowFailed(
        f"{table.flow}: batch {batch} was ended after {limits.seconds:g} s, the limit of its Python functions: let "
        f"them do less, read smaller batches (max_files, max_offsets), or allow more, PythonLimits(seconds=...)",
        "PYTHON_TIME_LIMIT",
    )


def _too_large(table: Table, batch: int, limits: PythonLimits, cause: str) -> FlowBroken:
    return FlowBroken(
        f"{table.flow}: a Python function needs more for batch {batch} than its limit of {limits.memory_mb} MB "
        f"({cause}): let it use less, or allow more, PythonLimits(memory_mb=...), and restart",
        "PYTHON_MEMORY_LIMIT",
    )


def _failed(table: Table, batch: int, cause: str, place: str | None) -> FlowFailed:
    if place is None:
        return FlowFailed(
            f"{table.flow}: a Python function failed in batch {batch} ({cause}), and with no row of it alone: "
            f"it is tried again",
            "PYTHON_EXCEPTION",
        )
    return FlowBroken(
        f"{table.flow}: a Python function fails in batch {batch} at {place} ({cause}): mend the function, or let it "
        f"return NULL for such a row, and restart",
        "PYTHON_EXCEPTION",
    )
