"""Writes a small batch of an aggregate: recomputes its buckets from the source files that may hold them, and replaces
their rows.

An aggregate without buckets is recomputed from all files of its source, if these are few.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import SparkSession

from include.checkpoints import checkpoint_files
from include.delta import stored_table
from include.engine.commit import CommitMetadata, read_table
from include.engine.fast_path import data_file, known_keys, replaced_files
from include.engine.fast_path.known_keys import Key, is_comparable, keys_of, micros, not_compared
from include.engine.fast_path.replaced_files import Replacement, StoredFile
from include.engine.fast_path.transaction import Transaction
from include.engine.fast_path.writer import Writer
from include.engine.rows import deduplicate, prepare, transform
from include.engine.rows.micro_batch import MicroBatch, Refusal, Written
from include.engine.rows.transform import Buckets
from include.engine.sources.reader import PlannedRead
from include.flows.batch_files import SourceFile
from include.lake import data_files, locations
from include.spec import Bucket, Flow, Upsert

# Most rows of the source that a batch reads: those of its buckets, or all if there are no buckets.
MOST_SOURCE_ROWS = 200_000

Starts = set[int | None]


class Aggregator(Writer):
    """Writes the batches of one flow whose table is recomputed, by time buckets or completely."""

    def __init__(self, spark: SparkSession, table: Flow) -> None:
        super().__init__(spark, table)
        self._write = table.write_as(Upsert)
        self._bucket = self._write.recompute
        self._source = table.source.table
        self._open_tables: dict[str, DeltaTable] = {}
        self._columns: list[str] | None = None

    @staticmethod
    def suits(table: Flow) -> bool:
        """Whether the files of the source show which rows a batch recomputes."""
        return table.is_recomputed and table.source.reads_table and not table.source.changes and not table.steps

    def write(self, batch: MicroBatch, planned: PlannedRead) -> Written | Refusal:
        """Recomputes the buckets of the rows in the files of the batch, or all rows."""
        # It reads the rows of its buckets itself, and limits their number. These include the rows of the batch.
        if planned.rows > MOST_SOURCE_ROWS:
            return Refusal(f"{planned.rows} rows", is_large=True)
        written = Written(planned.rows, batch.times.newest)
        transaction = self._begin(batch.metadata)
        if not isinstance(transaction, Transaction):
            return transaction or written
        if found := not_compared(transaction.layout.schema, self._write.keys, "its key"):
            return found
        starts: Starts = set()
        if planned.files and self._bucket:
            starts = self._touched_buckets(planned.files, self._bucket)
            starts = deduplicate.within_reach(starts, self._bucket.unit, self._write.reach_seconds)
        new_rows, candidates = transaction.layout.schema.empty_table(), list[tuple[str, int]]()
        # Without files, the batch holds no new rows, such as that of an OPTIMIZE of the source.
        if planned.files:
            source_rows = self._source_rows(batch, starts)
            if isinstance(source_rows, Refusal):
                return source_rows
            candidates = self._candidates(transaction, starts)
            new_rows = data_file.conform(self._aggregate(batch.spark, source_rows, starts), transaction.layout)
        if len(set(keys_of(new_rows, self._write.keys))) < len(new_rows):
            return Refusal("its transform makes several rows of one key")
        emptied = starts if self._write.reach_seconds else set()
        stored = replaced_files.read(transaction, candidates if len(new_rows) or emptied else ())
        if isinstance(stored, Refusal):
            return stored
        self._replace(transaction, stored, new_rows, emptied, batch.metadata)
        return written

    def _touched_buckets(self, files: tuple[SourceFile, ...], bucket: Bucket) -> Starts:
        path, width = locations.table_path(self._source), deduplicate.UNIT_SECONDS[bucket.unit]
        starts: Starts = set()
        for file in files:
            times = micros(parquet.read_table(data_files.readable(path / file.path), columns=[bucket.of]), bucket.of)
            starts |= _starts(times, width)
        return starts

    def _source_rows(self, batch: MicroBatch, starts: Starts) -> pa.Table | Refusal:
        """Returns all rows of these buckets, or without buckets all rows, as of the end of the batch."""
        source = self._open(self._source, checkpoint_files.read_version(batch.metadata.source_to))
        columns = self._needed_columns(batch.spark, pa.schema(source.schema()).names)
        if self._bucket is None:
            rows = stored_table.dataset(self._source, source).scanner(columns=columns).head(MOST_SOURCE_ROWS + 1)
        else:
            reach = math.ceil(self._write.reach_seconds * 1_000_000)
            spans = [(begin - reach, end + reach) for begin, end in _spans(starts, self._bucket.unit)]
            rows = known_keys.read(
                self._source, source, self._bucket.of, spans, None in starts, columns, MOST_SOURCE_ROWS + 1
            )
        if isinstance(rows, Refusal) or len(rows) <= MOST_SOURCE_ROWS:
            return rows
        return Refusal(
            f"{'its buckets hold' if self._bucket else 'its source holds'} more than {MOST_SOURCE_ROWS:,} rows"
        )

    def _aggregate(self, spark: SparkSession, rows: pa.Table, starts: Starts) -> pa.Table:
        """Computes the aggregate of these source rows, for these buckets."""
        prepare.tune(spark, len(rows))
        # As one Arrow batch: Spark takes an empty batch between others for the end, and ignores what follows.
        frame = spark.createDataFrame(rows.combine_chunks()).coalesce(1)
        buckets = Buckets.at(starts, self._bucket, self._write) if self._bucket else Buckets()
        return transform.aggregated(frame, self._table, self._write, replace(buckets, source="true")).toArrow()

    def _needed_columns(self, spark: SparkSession, names: list[str]) -> list[str]:
        """Returns the source columns that the aggregate needs, by Spark's optimized plan."""
        if self._columns is None:
            stored = read_table(spark, self._source)
            aggregate = transform.aggregated(stored, self._table, self._write)
            leaves = aggregate._jdf.queryExecution().executedPlan().collectLeaves()
            needed = set(names)
            if leaves.size() == 1 and leaves.apply(0).nodeName().startswith("Scan parquet"):
                needed = {*leaves.apply(0).requiredSchema().fieldNames(), *([self._bucket.of] if self._bucket else [])}
            # Without any column, an aggregate still counts rows.
            self._columns = [name for name in names if name in needed] or names[:1]
        return self._columns

    def _open(self, table: str, version: int) -> DeltaTable:
        delta_table = self._open_tables[table] = known_keys.at_version(table, self._open_tables.get(table), version)
        return delta_table

    def _replace(
        self,
        transaction: Transaction,
        stored: list[StoredFile],
        rows: pa.Table,
        emptied: Starts,
        metadata: CommitMetadata,
    ) -> None:
        """Replaces the stored rows that have the same keys. stored: the files that may hold such rows. emptied: buckets
        whose other rows are deleted.
        """
        keys = self._write.keys
        gone = {key for file in stored for key in self._keys_in(file.rows, emptied)} - set(keys_of(rows, keys))
        unchanged = _unchanged_keys(rows, [file.rows for file in stored], keys)
        rows = replaced_files.with_keys(rows, unchanged, keys, are_kept=False)
        keys_written = set(keys_of(rows, keys))
        updated = sum(len(replaced_files.with_keys(file.rows, keys_written, keys, are_kept=True)) for file in stored)
        deleted = sum(len(replaced_files.with_keys(file.rows, gone, keys, are_kept=True)) for file in stored)
        counts = {
            "operationNumSourceRows": len(rows),
            "numTargetRowsInserted": len(rows) - updated,
            "numTargetRowsUpdated": updated,
            "numTargetRowsDeleted": deleted,
        }
        replacement = Replacement(stored, rows, keys_written | gone, keys, counts)
        replaced_files.commit_replacement(transaction, replacement, metadata)

    def _keys_in(self, rows: pa.Table, starts: Starts) -> Iterator[Key]:
        """Yields the keys of stored rows of these buckets."""
        if starts and self._bucket:
            times = micros(rows, self._bucket.name)
            for key, time in zip(keys_of(rows, self._write.keys), times, strict=True):
                if (None if time is None else time // 1_000_000) in starts:
                    yield key

    def _candidates(self, transaction: Transaction, starts: Starts) -> list[tuple[str, int]]:
        """Returns the files that may hold rows of these buckets, by their statistics, with their sizes; without buckets
        all files.
        """
        opened = self._open(self._table.name, transaction.read_version)
        if self._bucket is None:
            return _paths_and_sizes(pa.table(opened.get_add_actions()))
        return _files_near(pa.table(opened.get_add_actions(flatten=True)), starts, self._bucket)


def _paths_and_sizes(actions: pa.Table) -> list[tuple[str, int]]:
    return list(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))


def _starts(times: list[int | None], width: int) -> Starts:
    """Returns the starts of the buckets of these times, in seconds since 1970. width: of a bucket, in seconds."""
    return {None if time is None else time // (width * 1_000_000) * width for time in times}


def _files_near(actions: pa.Table, starts: Starts, bucket: Bucket) -> list[tuple[str, int]]:
    """Returns path and size of the files that may hold rows of these buckets. actions: flattened."""
    names = (f"min.{bucket.name}", f"max.{bucket.name}", f"null_count.{bucket.name}")
    bounds = [micros(actions, name) if name in actions.column_names else None for name in names[:2]]
    nulls = actions.column(names[2]).to_pylist() if names[2] in actions.column_names else None
    spans = _spans(starts, bucket.unit)
    files = []
    for index, (path, size) in enumerate(_paths_and_sizes(actions)):
        least, greatest = (None if bound is None else bound[index] for bound in bounds)
        holds_null = None in starts and (nulls is None or nulls[index] != 0)
        # The maximum may be truncated to milliseconds.
        is_near = (
            least is None or greatest is None or any(begin <= greatest + 1_000 and least < end for begin, end in spans)
        )
        if holds_null or is_near:
            files.append((path, size))
    return files


def _unchanged_keys(rows: pa.Table, stored: list[pa.Table], keys: tuple[str, ...]) -> set[Key]:
    """Returns the keys of rows that are stored with the same values."""
    names = rows.column_names
    if not all(is_comparable(rows.schema.field(name).type) for name in names):
        return set()
    new = dict(zip(keys_of(rows, keys), keys_of(rows, names), strict=True))
    pairs = (zip(keys_of(part, keys), keys_of(part, names), strict=True) for part in stored)
    return {key for key, row in chain.from_iterable(pairs) if new.get(key) == row}


def _spans(starts: Starts, unit: str) -> list[tuple[int, int]]:
    """Returns spans that cover the buckets, in microseconds since 1970."""
    spans = deduplicate.spans([start for start in starts if start is not None], deduplicate.UNIT_SECONDS[unit])
    return [(begin * 1_000_000, end * 1_000_000) for begin, end in spans]
