"""Finds the row of a batch that makes a Python function fail, by running halves of the batch."""

from itertools import accumulate

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.engine import failure
from include.engine.batch import table_rows
from include.engine.python.limits import limit_time
from include.spec import Table
from include.spec.origin import ORIGIN

# `monotonically_increasing_id` numbers the rows of each partition from a multiple of 2^33.
ID, PARTITION_BITS = "_id", 33
SHOWN_CHARACTERS = 200


def find(rows: DataFrame, table: Table, seconds: float) -> str | None:
    """Returns where the failing row comes from, or how many rows are left when the time is over.

    rows: of the source; each evaluation returns the same rows in the same partitions. Returns None if no row fails by
    itself.
    """
    batch = _Batch(rows, table)
    if not batch.count:
        return None
    first, end = 0, batch.count
    with limit_time(rows.sparkSession, seconds) as is_over:
        try:
            while end - first > 1:
                middle = (first + end) // 2
                first, end = (first, middle) if batch.fails(first, middle) else (middle, end)
            return batch.origin(first) if batch.fails(first, end) else None
        except (PySparkException, Py4JError):
            if not is_over.is_set():
                raise
    return f"one of {end - first:,} rows"


class _Batch:
    """The rows of a batch by their position, from 0."""

    def __init__(self, rows: DataFrame, table: Table) -> None:
        self._rows = rows.withColumn(ID, F.monotonically_increasing_id())
        self._table = table
        counts = self._rows.groupBy(F.shiftright(ID, PARTITION_BITS).alias("partition")).count().collect()
        self._counts: list[tuple[int, int]] = sorted((row["partition"], row["count"]) for row in counts)
        self.count = sum(count for _, count in self._counts)

    def fails(self, first: int, end: int) -> bool:
        """Whether a Python function fails for the rows from position `first` to the one before `end`."""
        some_rows = self._rows.filter(F.col(ID).between(self._id(first), self._id(end - 1))).drop(ID)
        result = table_rows.apply_transform(table_rows.apply_steps(some_rows, self._table), self._table)
        try:
            result.write.format("noop").mode("overwrite").save()
        except (PySparkException, Py4JError) as error:
            if failure.python_error(error) is None:
                raise
            return True
        return False

    def origin(self, position: int) -> str:
        """Returns topic, partition and offset of a row, or file and index; the row itself if it has none of them."""
        names = [name for name in ORIGIN if name in self._rows.columns]
        row = self._rows.filter(F.col(ID) == self._id(position)).drop(ID)
        if not names:
            text = F.substring(F.to_json(F.struct("*")), 1, SHOWN_CHARACTERS)
            return f"the row {row.select(text).collect()[0][0]}"
        values = row.select(*names).collect()[0]
        return ", ".join(f"{name} {values[name]}" for name in names)

    def _id(self, position: int) -> int:
        ends = accumulate(count for _, count in self._counts)
        partition, count, end = next(
            (number, count, end) for (number, count), end in zip(self._counts, ends, strict=True) if position < end
        )
        return (partition << PARTITION_BITS) + position - (end - count)
