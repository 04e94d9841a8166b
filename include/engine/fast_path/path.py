"""The fast path of one flow: decides which of its batches take it, and writes these.

All commits of a table use Delta's transaction, in the JVM of the driver that holds the flow's lease. Spark writes the
other batches, and commits by the same transaction. Both leave the same rows and metadata. A batch is refused before any
of it is written.
"""

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from include import logs
from include.checkpoints import checkpoint_files, offset_ranges
from include.checkpoints.offset_ranges import OffsetRange
from include.delta.delta_log import DeltaLog
from include.engine.batch import prepare, watermark
from include.engine.batch.watermark import EventTimes
from include.engine.fast_path import aggregate, transaction
from include.engine.fast_path.aggregate import Aggregator
from include.engine.fast_path.append import Appender
from include.engine.fast_path.dimensions import Dimensions, local_frame
from include.engine.fast_path.merge import Merger
from include.engine.fast_path.topic_reader import TopicReader
from include.engine.fast_path.transaction import NotSupported
from include.engine.tables.commit import CommitMetadata
from include.errors import FlowBroken
from include.kafka import cluster
from include.ledger.batch_files import AppendedFiles, SourceFile
from include.settings import settings
from include.spec import Append, Delta, Kafka, Rule, Table, Upsert

# A batch that reads more commits is not small.
MOST_VERSIONS = 200


@dataclass(frozen=True)
class PlannedRead:
    """rows: an upper bound. files: those of a stored source that hold the rows. bytes: their total size on disk.
    ranges: offset ranges of topics.
    """

    rows: int
    bytes: int = 0
    files: tuple[SourceFile, ...] = ()
    ranges: tuple[OffsetRange, ...] = ()


class Source:
    """The source of one flow."""

    def __init__(self, table: Table) -> None:
        self._table, self._source = table, table.origin

    def between(self, begin: Any, end: Any) -> PlannedRead:
        """Returns what lies between two offsets of the stream. Raises NotSupported if that takes reading the rows."""
        if not self._source.reads_table:
            ranges = tuple(offset_ranges.kafka_ranges(begin, end))
            return PlannedRead(sum(range_.count for range_ in ranges), ranges=ranges)
        if self._source.changes:
            raise NotSupported("it reads changes, which no commit counts")
        if begin is not None and offset_ranges.delta_position(begin) == offset_ranges.delta_position(end):
            return PlannedRead(0)
        try:
            files = tuple(AppendedFiles(self._log(begin, end), self._table.source_as(Delta)).between(begin, end))
        except FlowBroken as error:
            raise NotSupported(str(error)) from error
        if any(file.rows is None for file in files):
            raise NotSupported(f"files of {self._source.table} have no statistics")
        return PlannedRead(sum(file.rows or 0 for file in files), sum(file.bytes for file in files), files)

    def _log(self, begin: Any, end: Any) -> DeltaLog:
        path = settings().table_path(self._source.table)
        if begin is None or begin.get("isStartingVersion") or end.get("isStartingVersion"):
            return DeltaLog(path)
        # An offset after the last file of a version belongs to the next version, which may not exist yet.
        first, last = offset_ranges.delta_position(begin)[0], checkpoint_files.read_version(end)
        if last - first > MOST_VERSIONS:
            raise NotSupported("it gathers many commits of its source")
        return DeltaLog(path, range(first, last + 1))


MOST_ROWS = 50_000
MOST_BYTES = 64_000_000
# Most records of a raw topic in a batch, which go to one file unchanged: with Spark's cores in this process, and on a
# cluster, where they read in parallel.
MOST_LOCAL_RECORDS, MOST_REMOTE_RECORDS = 2_000_000, 10_000
# Assumed before the first batch shows the size of the rows.
BYTES_PER_ROW = 64_000
# The size of rows in memory, relative to their compressed files. A high estimate.
BYTES_PER_STORED_BYTE = 30


class TooLarge(NotSupported):
    """The batch is too large, and Spark writes it."""


@dataclass(frozen=True)
class Written:
    """rows: how many the batch read. newest: watermark time for the next batch's late rows, in microseconds
    since 1970.
    """

    rows: int
    newest: int | None


def suits(table: Table) -> bool:
    """Whether small batches of the table's flow may take the fast path."""
    if not settings().fast_path or table.is_view:
        return False
    return not table.is_recomputed or Aggregator.suits(table)


def of(spark: SparkSession, table: Table) -> "FastPath | None":
    """Returns the fast path of a flow; None if Spark writes all of its batches."""
    if not suits(table):
        return None
    if difference := transaction.unexpected(spark):
        logs.warning(f"Spark's writer takes small batches, too: {difference}", table.flow)
        return None
    return FastPath(spark, table)


class FastPath:
    """The fast path of one flow in one process."""

    def __init__(self, spark: SparkSession, table: Table) -> None:
        self._table = table
        self._source = Source(table)
        self._bytes_per_row: float = BYTES_PER_ROW
        self._logged_reasons: set[str] = set()
        self._appender = Appender(spark, table, table.write_as(Append)) if table.write.appends else None
        self._aggregator = Aggregator(spark, table, table.write_as(Upsert)) if table.is_recomputed else None
        self._merger = Merger(spark, table, table.write_as(Upsert)) if table.merges_changes else None
        self._writers = [writer for writer in (self._appender, self._aggregator, self._merger) if writer]
        self._dimensions = Dimensions(table)
        self._topics = _topic_reader(table)
        is_local = str(spark.sparkContext.master).startswith("local")
        self._most_records = MOST_LOCAL_RECORDS if is_local else MOST_REMOTE_RECORDS

    def write(
        self,
        rows: DataFrame,
        metadata: CommitMetadata,
        times: EventTimes,
        last_commit: tuple[int, int] | None,
        left_before: tuple[int, int] | None,
        is_prepared: bool,
    ) -> Written:
        """Writes one batch. rows: columns as for `include.engine.batch.batch.write`. Raises NotSupported.

        times, left_before: as for `Appender.append_checked`. last_commit: as for `Merger.write`.
        """
        try:
            return self._write(rows, metadata, times, last_commit, left_before, is_prepared)
        except (pa.ArrowException, DeltaError, OSError, KeyError, ValueError, OverflowError) as error:
            # Spark may read what these libraries cannot, such as text that is no UTF-8, or explain the error better.
            raise NotSupported(f"{type(error).__name__}: {error}") from error

    def append(self, rows: DataFrame, metadata: CommitMetadata) -> None:
        """Writes a small batch of rows, with the table's columns, that no stream has read. Raises NotSupported."""
        assert self._appender
        try:
            # A generator, because the table is checked first: its columns may have types that Arrow lacks.
            self._appender.append((part.toArrow() for part in [rows]), replace(metadata, fast_path=True))
        except (pa.ArrowException, DeltaError, OSError, KeyError) as error:
            raise NotSupported(f"{type(error).__name__}: {error}") from error

    def _write(
        self,
        rows: DataFrame,
        metadata: CommitMetadata,
        times: EventTimes,
        last_commit: tuple[int, int] | None,
        left_before: tuple[int, int] | None,
        is_prepared: bool,
    ) -> Written:
        reads = self._source.between(metadata.source_from, metadata.source_to)
        metadata = replace(metadata, fast_path=True)
        if self._topics and reads.rows <= self._most_records:
            prepare.tune(rows.sparkSession, expected_rows=0)
            assert self._appender
            return Written(self._appender.append(self._topics.read(reads.ranges), metadata), times.newest)
        if self._aggregator:
            # It reads the rows of its buckets itself, and limits their number. These include the rows of the batch.
            if reads.rows > aggregate.MOST_SOURCE_ROWS:
                raise TooLarge(f"{reads.rows} rows")
            self._aggregator.write(rows.sparkSession, reads.files, metadata)
            return Written(reads.rows, times.newest)
        self._require_small(reads)
        prepare.tune(rows.sparkSession, reads.rows)
        if prepare.is_raw(self._table):
            assert self._appender
            return Written(self._appender.append([self._to_arrow(rows)], metadata), times.newest)
        rules = watermark.rules_of(self._table, times)
        if self._table.lookups:
            parsed_rows = rows if is_prepared else prepare.parsed(rows, self._table)
            rows, no_partner = self._looked_up(parsed_rows, rules, metadata)
            metadata = replace(metadata, no_partner=no_partner)
        elif not is_prepared:
            rows = prepare.with_violations(rows, self._table, rules)
        if self._merger:
            written = self._merger.write(self._to_arrow(rows), metadata, times, last_commit, left_before)
        else:
            assert self._appender
            written = self._appender.append_checked(self._to_arrow(rows), metadata, times, left_before)
        return Written(reads.rows, times.newest) if written is None else Written(written[0].read, written[1])

    def _looked_up(
        self, parsed_rows: DataFrame, rules: tuple[Rule, ...], metadata: CommitMetadata
    ) -> tuple[DataFrame, dict[str, int]]:
        """Returns checked rows, joined with those of its lookups, and by lookup how many rows have no partner."""
        rows, no_partner = self._dimensions.join(self._to_arrow(parsed_rows), metadata.lookups or {})
        joined_rows = local_frame(parsed_rows.sparkSession, rows)
        return prepare.looked_up(joined_rows, replace(self._table, lookups=()), rules, ()), no_partner

    def _require_small(self, reads: PlannedRead) -> None:
        if reads.rows > MOST_ROWS:
            raise TooLarge(f"{reads.rows} rows")
        expected_bytes = reads.rows * self._bytes_per_row
        if min(expected_bytes, BYTES_PER_STORED_BYTE * reads.bytes if reads.files else expected_bytes) > MOST_BYTES:
            # Spark's writers measure nothing. Without this, a flow whose first batch is large would always use them.
            self._bytes_per_row /= 2
            raise TooLarge(f"{reads.rows} rows of unknown size")

    def _to_arrow(self, rows: DataFrame) -> pa.Table:
        try:
            table = rows.toArrow()
        except PySparkException as error:
            if "maxResultSize" in str(error):
                raise TooLarge(str(error)) from error
            raise
        if len(table):
            self._bytes_per_row = max(table.nbytes / len(table), self._bytes_per_row / 2)
        return table

    @property
    def has_written_companions(self) -> bool:
        """Whether the last batch has written rows into a companion of the table."""
        companions = [
            companion for writer in (self._appender, self._merger) if writer for companion in writer.companions
        ]
        return any(companion.has_written for companion in companions)

    def say(self, reason: NotSupported) -> None:
        """Logs each reason once, except that of a large batch."""
        text = str(reason)
        if text not in self._logged_reasons and not isinstance(reason, TooLarge):
            logs.warning(f"batches use Spark's writer: {text}", self._table.flow)
            self._logged_reasons.add(text)

    @property
    def may_have_committed(self) -> bool:
        """Whether only the table tells if the last batch was committed, because its commit has raised."""
        return any(writer.target.is_unanswered for writer in self._writers)

    def forget(self) -> None:
        """Discards what it knows of the table, after another writer has written the batch."""
        for writer in self._writers:
            writer.forget()


def _topic_reader(table: Table) -> TopicReader | None:
    """Returns the reader of a flow that stores records as they are; None for other flows."""
    if not prepare.is_raw(table) or table.origin.schema_ids:
        return None
    return TopicReader(cluster.of(table.source_as(Kafka)))
