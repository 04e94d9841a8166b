"""What Spark calls for each batch of a query, and how both processes forget it once the query has ended."""

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession


class BatchFunction:
    """The function of a query's batches, for `foreachBatch`.

    The JVM refers to it, and what it refers to holds objects of the JVM, its own query among them. No garbage collector
    sees a circle through two heaps, so `close` breaks it.
    """

    def __init__(self, spark: SparkSession, write: Callable[[DataFrame, int], None]) -> None:
        self._spark = spark
        self._write: Callable[[DataFrame, int], None] | None = write
        self._error: BaseException | None = None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        if self._write is None:
            raise InterruptedError("the flow of this query has ended")
        try:
            self._write(rows, batch_id)
        except BaseException as error:
            self._error = error
            raise

    def close(self) -> None:
        """Drops all that belongs to the flow. Its query has ended."""
        self._write = None
        # PySpark keeps the error of a batch, and its traceback the frames of the flow.
        while self._error:
            self._error.__traceback__ = None
            self._error = self._error.__cause__ or self._error.__context__
        # py4j keeps the connection of each JVM thread that has called this process, with a thread here that listens,
        # for good. This closes all that are idle; a thread that calls again opens another.
        gateway: Any = self._spark.sparkContext._gateway
        gateway.java_gateway_server.getCallbackClient().periodicCleanup()
