"""The fast path of one flow: which of its batches take it, and what becomes of these.

One table has one kind of committer, which is Delta's transaction in the JVM of the driver that holds the flow's lease;
a batch that does not take this path is written by Spark, which ends in the same transaction. Both leave the same rows
and the same stamp. A batch is refused before anything of it is written.
"""

import sys
from dataclasses import dataclass, replace

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from include.engine.batch import prepare, tuning, watermark
from include.engine.fast_path import internals, source
from include.engine.fast_path.aggregate import Aggregator
from include.engine.fast_path.append import Appender
from include.engine.fast_path.features import Refused
from include.engine.fast_path.topic_reader import TopicReader
from include.engine.tables.commit import CommitMetadata
from include.settings import settings
from include.spec import Append, Kafka, Replace, Table, Upsert

MOST_ROWS = 50_000
MOST_BYTES = 64_000_000
# Of a topic, which are written as they come, to one file; and where the cores of a cluster may read them in parallel.
MOST_LOCAL_RECORDS, MOST_REMOTE_RECORDS = 2_000_000, 10_000
# Before the first batch has shown how long the rows are.
BYTES_PER_ROW = 64_000
# Of rows in memory against their compressed files, much rather than little.
BYTES_PER_STORED_BYTE = 30


class TooLarge(Refused):
    """A batch for Spark's own writers."""


@dataclass(frozen=True)
class Written:
    """rows: how many the batch read. newest: what the late rows of the next one are late by."""

    rows: int
    newest: int | None


def suits(table: Table) -> bool:
    """Whether small batches of such a flow may take the path."""
    if not settings().fast_path or isinstance(table.write, Replace):
        return False
    return not isinstance(table.write, Upsert) or Aggregator.suits(table)


def of(spark: SparkSession, table: Table) -> "FastPath | None":
    """The path for a flow, None where its batches are always written by Spark."""
    if not suits(table):
        return None
    if missing := internals.unexpected(spark):
        print(f"sluice: {table.flow}: small batches are written the long way: {missing}", file=sys.stderr, flush=True)
        return None
    return FastPath(spark, table)


class FastPath:
    """Of one flow in one process."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._table = table
        self._source = source.Source(table)
        self._bytes_per_row: float = BYTES_PER_ROW
        self._said: set[str] = set()
        write = table.write
        self._appender = Appender(spark, table, write) if isinstance(write, Append) else None
        self._aggregator = Aggregator(spark, table, write) if isinstance(write, Upsert) else None
        takes_records = isinstance(table.source, Kafka) and prepare.is_raw(table) and not table.source.schema_ids
        self._topics = TopicReader(settings().kafka) if takes_records else None
        is_local = spark.sparkContext.master.startswith("local")
        self._most_records = MOST_LOCAL_RECORDS if is_local else MOST_REMOTE_RECORDS

    def write(
        self,
        rows: DataFrame,
        stamp: CommitMetadata,
        newest: int | None,
        left_before: tuple[int, int] | None,
        is_prepared: bool,
    ) -> Written:
        """Write one batch. newest, left_before: as `Appender.append_judged` has them. Raises Refused."""
        try:
            return self._write(rows, stamp, newest, left_before, is_prepared)
        except (pa.ArrowException, DeltaError, OSError, KeyError) as error:
            # Spark may be able to read what these cannot, or say better what is wrong.
            raise Refused(f"{type(error).__name__}: {error}") from error

    def append(self, rows: DataFrame, stamp: CommitMetadata) -> None:
        """Write a small batch whose rows were made beside the stream, as they are. Raises Refused."""
        assert self._appender
        try:
            # Behind the look at the table, whose columns may be of types that Arrow does not know.
            self._appender.append((made.toArrow() for made in [rows]), replace(stamp, fast_path=True))
        except (pa.ArrowException, DeltaError, OSError, KeyError) as error:
            raise Refused(f"{type(error).__name__}: {error}") from error

    def _write(
        self,
        rows: DataFrame,
        stamp: CommitMetadata,
        newest: int | None,
        left_before: tuple[int, int] | None,
        is_prepared: bool,
    ) -> Written:
        read = self._source.between(stamp.source_from, stamp.source_to)
        stamp = replace(stamp, fast_path=True)
        if self._topics and read.rows <= self._most_records:
            tuning.tune(rows.sparkSession, expected_rows=0)
            assert self._appender
            return Written(self._appender.append(self._topics.read(read.ranges), stamp), newest)
        if self._aggregator:
            # It reads what it needs by itself, and knows how much that may be.
            self._aggregator.write(rows.sparkSession, read.files, stamp)
            return Written(read.rows, newest)
        assert self._appender
        self._require_small(read)
        tuning.tune(rows.sparkSession, read.rows)
        if prepare.is_raw(self._table):
            return Written(self._appender.append([self._fetched(rows)], stamp), newest)
        if not is_prepared:
            rows = prepare.with_violations(rows, self._table, watermark.rules_of(self._table, newest))
        done = self._appender.append_judged(self._fetched(rows), stamp, newest, left_before)
        return Written(read.rows, newest) if done is None else Written(done[0].read, done[1])

    def _require_small(self, read: source.Reads) -> None:
        if read.rows > MOST_ROWS:
            raise TooLarge(f"{read.rows} rows")
        expected_bytes = read.rows * self._bytes_per_row
        if min(expected_bytes, BYTES_PER_STORED_BYTE * read.bytes if read.files else expected_bytes) > MOST_BYTES:
            # The long way measures nothing: without this, a flow whose first batch is large would never leave it.
            self._bytes_per_row /= 2
            raise TooLarge(f"{read.rows} rows of unknown size")

    def _fetched(self, rows: DataFrame) -> pa.Table:
        try:
            found = rows.toArrow()
        except PySparkException as error:
            if "maxResultSize" in str(error):
                raise TooLarge(str(error)) from error
            raise
        if len(found):
            self._bytes_per_row = max(found.nbytes / len(found), self._bytes_per_row / 2)
        return found

    @property
    def has_put_aside(self) -> bool:
        """Whether broken rows of the batch that was last tried are in the quarantine."""
        return self._appender is not None and self._appender.has_put_aside

    def say(self, reason: Refused) -> None:
        """Each reason once, but for that of a large batch, which is no news."""
        why = str(reason)
        if why not in self._said and not isinstance(reason, TooLarge):
            print(f"sluice: {self._table.flow}: batches are written the long way: {why}", file=sys.stderr, flush=True)
            self._said.add(why)

    def forget(self) -> None:
        """A batch was written another way: what is known of the table counts no longer."""
        for writer in (self._appender, self._aggregator):
            if writer:
                writer.forget()
