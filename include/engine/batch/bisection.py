"""Narrows an error that data caused down to the rows of a batch that fail by themselves, by running parts of the batch.

A row is poisonous if it fails alone, and again, where other rows pass. A definition under which every row fails is
broken instead, unless it has made rows before.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from py4j.protocol import Py4JError
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.engine import failure
from include.engine.rows import quality, transform
from include.rules import FAILED
from include.spec.origin import FAILED_REASON, FAILED_RECORD, ORIGIN

# `monotonically_increasing_id` numbers the rows of each partition from a multiple of 2^33.
ID, PARTITION_BITS = "_id", 33
# Most rows of a batch that are quarantined as poisonous; and how many must fail, with none that passes, for the
# definition to count as broken.
MOST_ROWS, MOST_WITHOUT_ONE = 500, 20
# Most rows that are left out because rows fail only together with them.
MOST_TOGETHER = 20
# How long parts of a batch are run.
SEARCH_SECONDS = 900
RECORD_PLACE = {"topic": "STRING", "partition": "INT", "offset": "BIGINT"}

Evaluate = Callable[[DataFrame], None]


@dataclass(frozen=True)
class Failing:
    """A row that fails by itself. position: in the batch, from 0. reason: in one line. error_class: as of a flow."""

    position: int
    reason: str
    error_class: str


@dataclass
class Search:
    """The result of a search. unit: what fails by itself. is_over: it was ended at one of its limits."""

    found: list[Failing] = field(default_factory=list)
    has_passed: bool = False
    is_over: bool = False

    @property
    def is_broken(self) -> bool:
        """Whether everything fails that was tried."""
        return bool(self.found) and not self.has_passed


def search(
    count: int, error_of: Callable[[int, int], Exception | None], error: Exception, has_passed: bool = False
) -> Search:
    """Finds what fails by itself among `count` things, by halves. error: of all together.

    error_of: runs the things from one position to before another, and returns the error. Each thing that fails alone
    is tried twice, because one failure may be a lost task. has_passed: whether things pass that are not among these.
    """
    result, deadline = Search(has_passed=has_passed), time.monotonic() + SEARCH_SECONDS
    # Parts that failed, the first one on top.
    parts = [(0, count, error)]
    while parts:
        begin, end, error = parts.pop()
        most = MOST_ROWS if result.has_passed else MOST_WITHOUT_ONE
        if len(result.found) >= most or time.monotonic() > deadline:
            result.is_over = True
            break
        if end - begin == 1:
            if again := error_of(begin, end):
                result.found.append(Failing(begin, failure.reason(again), failure.condition(again)))
            else:
                result.has_passed = True
            continue
        middle = (begin + end) // 2
        for part in ((middle, end), (begin, middle)):
            if part_error := error_of(*part):
                parts.append((*part, part_error))
            else:
                result.has_passed = True
    return result


def that_hold(count: int, holds: Callable[[int, int], bool]) -> list[int]:
    """Returns the positions of the things, of `count`, for which it holds. holds: for one from a position to before
    another.
    """
    found: list[int] = []
    parts = [(0, count)] if count else []
    while parts:
        begin, end = parts.pop()
        if not holds(begin, end):
            continue
        if end - begin == 1:
            found.append(begin)
        else:
            middle = (begin + end) // 2
            parts += [(middle, end), (begin, middle)]
    return found


def search_together(count: int, error_of: Callable[[int, frozenset[int]], Exception | None]) -> list[Failing] | None:
    """Finds the things with which those before them fail, although none fails alone. None if these are too many.

    error_of: runs the things before one position without some of them, and returns the error.
    """
    found: list[Failing] = []
    deadline = time.monotonic() + SEARCH_SECONDS
    while error := error_of(count, frozenset(row.position for row in found)):
        left_out = frozenset(row.position for row in found)
        passes, fails = max(left_out, default=-1) + 1, count
        while fails - passes > 1:
            middle = (passes + fails) // 2
            if middle_error := error_of(middle, left_out):
                fails, error = middle, middle_error
            else:
                passes = middle
        if len(found) == MOST_TOGETHER or fails <= passes or time.monotonic() > deadline:
            return None
        found.append(Failing(fails - 1, f"together with other rows: {failure.reason(error)}", failure.condition(error)))
    return found


def error_of(run: Callable[[], object]) -> Exception | None:
    """Returns the error of running this, if data may have caused it. Raises other errors."""
    try:
        run()
    except (PySparkException, Py4JError) as error:
        if not failure.may_follow_a_row(error):
            raise
        return error
    return None


class Rows:
    """The rows of a batch by their position, from 0. Held in memory and on disk until `forget`."""

    def __init__(self, rows: DataFrame) -> None:
        self._rows = rows.withColumn(ID, F.monotonically_increasing_id()).persist(StorageLevel.MEMORY_AND_DISK)
        counts = self._rows.groupBy(F.shiftright(ID, PARTITION_BITS).alias("partition")).count().collect()
        self._counts: list[tuple[int, int]] = sorted((row["partition"], row["count"]) for row in counts)
        self.count = sum(count for _, count in self._counts)

    def forget(self) -> None:
        self._rows.unpersist()

    def part(self, begin: int, end: int, without: Iterable[int] = ()) -> DataFrame:
        rows = self._rows.filter(F.col(ID).between(self._id(begin), self._id(end - 1)))
        ids = [self._id(position) for position in without]
        return (rows.filter(~F.col(ID).isin(ids)) if ids else rows).drop(ID)

    def without(self, positions: Iterable[int]) -> DataFrame:
        return self.part(0, self.count, positions) if self.count else self._rows.drop(ID)

    def records(self, failing: list[Failing]) -> DataFrame:
        """Returns the failing rows, with `_failed_reason`, `_failed_record` and `_rules`. They outlive `forget`."""
        spark = self._rows.sparkSession
        reasons = spark.createDataFrame(
            [(self._id(row.position), row.reason) for row in failing], f"`{ID}` BIGINT, `{FAILED_REASON}` STRING"
        )
        rows = self._rows.filter(F.col(ID).isin([self._id(row.position) for row in failing]))
        names = [name for name in self._rows.columns if name != ID]
        return as_failed(
            rows.withColumn(FAILED_RECORD, transform.record(names)).join(F.broadcast(reasons), ID).drop(ID)
        )

    def texts(self, positions: Iterable[int]) -> list[str]:
        """Returns rows as JSON, as in `_failed_record`."""
        rows = self._rows.filter(F.col(ID).isin([self._id(position) for position in positions]))
        names = [name for name in rows.columns if name != ID]
        return [row[0] for row in rows.select(transform.record(names)).collect()]

    def place(self, position: int, shows_row: bool = True) -> str:
        """Returns topic, partition and offset of a row, or file and index. If it has none of them, the row itself, or
        its number in the batch.
        """
        row = self.part(position, position + 1)
        names = [name for name in ORIGIN if name in row.columns]
        if not names and not shows_row:
            return f"row {position} of the batch"
        if not names:
            text = F.substring(F.to_json(F.struct("*")), 1, failure.SENTENCE_CHARACTERS)
            return f"the row {row.select(text).collect()[0][0]}"
        values = row.select(*names).collect()[0]
        return ", ".join(f"{name} {values[name]}" for name in names)

    def _id(self, position: int) -> int:
        ends = accumulate(count for _, count in self._counts)
        partition, count, end = next(
            (number, count, end) for (number, count), end in zip(self._counts, ends, strict=True) if position < end
        )
        return (partition << PARTITION_BITS) + position - (end - count)


@contextmanager
def persisted(rows: DataFrame) -> Iterator[Rows]:
    """Persists the rows of a batch, and yields them by their position."""
    batch_rows = Rows(rows)
    try:
        yield batch_rows
    finally:
        batch_rows.forget()


def as_failed(rows: DataFrame) -> DataFrame:
    """Returns rows with `_failed_reason` and `_failed_record` as rows of a quarantine."""
    return rows.withColumn(quality.RULES, F.array(F.lit(FAILED)))


def records_of(spark: SparkSession, places: list[dict[str, Any]], reasons: list[str]) -> DataFrame:
    """Returns rows of a quarantine for what could not be read as rows. places: what is known of each."""
    rows = [
        (reason, json.dumps(place), *[place.get(name) for name in RECORD_PLACE])
        for place, reason in zip(places, reasons, strict=True)
    ]
    columns = ", ".join(f"`{name}` {type_}" for name, type_ in RECORD_PLACE.items())
    schema = f"`{FAILED_REASON}` STRING, `{FAILED_RECORD}` STRING, {columns}"
    return as_failed(spark.createDataFrame(rows, schema).coalesce(1))


def for_quarantine(failed: DataFrame, columns: DataFrame) -> DataFrame:
    """Returns failed rows with those columns that a quarantine has, too: of the same name and type.

    columns: the quarantine's.
    """
    types = {field.name: field.dataType.simpleString() for field in columns.schema}
    names = [field.name for field in failed.schema if types.get(field.name) == field.dataType.simpleString()]
    return failed.select(*[F.col(f"`{name}`") for name in names])
