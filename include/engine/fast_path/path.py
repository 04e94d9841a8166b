"""The fast path of one flow: decides which of its batches take it, and writes these.

All commits of a table use Delta's transaction, in the JVM of the driver that holds the flow's lease. Spark writes the
other batches, and commits by the same transaction. Both leave the same rows and metadata. A batch is refused before any
of it is written.
"""

from dataclasses import replace

import pyarrow as pa
from deltalake.exceptions import DeltaError
from pyspark.sql import DataFrame, SparkSession

from include import logs, personal
from include.engine.commit import CommitMetadata
from include.engine.fast_path import transaction
from include.engine.fast_path.aggregate import Aggregator
from include.engine.fast_path.append import Appender, RecordAppender
from include.engine.fast_path.merge import Merger
from include.engine.fast_path.table_layout import NotSupported
from include.engine.fast_path.writer import Writer
from include.engine.rows.micro_batch import MicroBatch, Refusal, Written
from include.engine.sources import readers
from include.settings import settings
from include.spec import Flow

# One per write mode. The first that suits a table writes it.
WRITERS: tuple[type[Writer], ...] = (RecordAppender, Appender, Aggregator, Merger)
# Spark may read what these libraries cannot, such as text that is no UTF-8, or explain the error better.
LIBRARY_ERRORS = (pa.ArrowException, DeltaError, OSError, KeyError)
NUMBER_ERRORS = (ValueError, OverflowError)


def suits(table: Flow) -> bool:
    """Whether small batches of the table's flow may take the fast path."""
    return settings().fast_path and not table.is_view and _writer_of(table) is not None


def of(spark: SparkSession, table: Flow) -> "FastPath | None":
    """Returns the fast path of a flow; None if Spark writes all of its batches."""
    if not suits(table):
        return None
    if difference := transaction.unexpected(spark):
        logs.warning(f"Spark's writer takes small batches, too: {difference}", table.flow)
        return None
    return FastPath(spark, table)


def _writer_of(table: Flow) -> type[Writer] | None:
    return next((writer for writer in WRITERS if writer.suits(table)), None)


class FastPath:
    """The fast path of one flow in one process."""

    def __init__(self, spark: SparkSession, table: Flow) -> None:
        writer = _writer_of(table)
        assert writer, f"no writer suits {table.name}"
        self._table = table
        self._writer = writer(spark, table)
        self._reader = readers.of(table)
        self._logged_reasons: set[str] = set()

    def write(self, batch: MicroBatch) -> Written | Refusal:
        """Writes one batch, or returns why it does not."""
        for companion in self._writer.companions:
            companion.has_written = False
        try:
            planned = self._reader.planned(batch.metadata.source_from, batch.metadata.source_to)
            if isinstance(planned, Refusal):
                return planned
            self._writer.target.rows_written = 0
            answer = self._writer.write(batch.noting(fast_path=True), planned)
            return answer if isinstance(answer, Refusal) else replace(answer, written=self._writer.target.rows_written)
        except NotSupported as reason:
            return Refusal(str(reason))
        except (*LIBRARY_ERRORS, *NUMBER_ERRORS) as error:
            return Refusal(f"{type(error).__name__}: {error}")

    def append(self, rows: DataFrame, metadata: CommitMetadata) -> Refusal | None:
        """Writes a small batch of rows, with the table's columns, that no stream has read."""
        assert isinstance(self._writer, Appender)
        try:
            # A generator, because the table is checked first: its columns may have types that Arrow lacks.
            written = self._writer.append((part.toArrow() for part in [rows]), replace(metadata, fast_path=True))
        except NotSupported as reason:
            return Refusal(str(reason))
        except LIBRARY_ERRORS as error:
            return Refusal(f"{type(error).__name__}: {error}")
        return written if isinstance(written, Refusal) else None

    @property
    def has_written_companions(self) -> bool:
        """Whether the last batch has written rows into a companion of the table."""
        return any(companion.has_written for companion in self._writer.companions)

    def say(self, refusal: Refusal) -> None:
        """Logs each reason once, except that of a large batch."""
        if refusal.reason not in self._logged_reasons and not refusal.is_large:
            reason = personal.sentence(self._table, refusal.reason)
            logs.warning(f"batches use Spark's writer: {reason}", self._table.flow)
            self._logged_reasons.add(refusal.reason)

    @property
    def may_have_committed(self) -> bool:
        """Whether only the table tells if the last batch was committed, because its commit has raised."""
        return self._writer.target.is_unanswered

    def forget(self) -> None:
        """Discards what it knows of the table, after another writer has written the batch."""
        self._writer.forget()
