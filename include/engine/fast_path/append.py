"""Appends a small batch. One Spark job delivers its rows as Arrow, or none for records as they are."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from include.engine.commit import CommitMetadata
from include.engine.fast_path import data_file
from include.engine.fast_path.collect import Collector
from include.engine.fast_path.data_file import DataFile
from include.engine.fast_path.known_keys import Key, KnownKeys, is_comparable, keys_of, micros, not_compared
from include.engine.fast_path.topic_reader import TopicReader
from include.engine.fast_path.transaction import Transaction
from include.engine.fast_path.writer import Companion, Writer
from include.engine.rows import deduplicate, prepare, storable
from include.engine.rows.micro_batch import MicroBatch, Refusal, Written
from include.engine.sources.reader import PlannedRead
from include.kafka import cluster
from include.spec import Append, Flow, Kafka

# Most records of a raw topic in a batch, which go to one file unchanged: with Spark's cores in this process, and on a
# cluster, where they read in parallel.
MOST_LOCAL_RECORDS, MOST_REMOTE_RECORDS = 2_000_000, 10_000


class Appender(Writer):
    """Appends the batches of one flow: the good rows, each identity once."""

    def __init__(self, spark: SparkSession, table: Flow) -> None:
        super().__init__(spark, table)
        self._write = table.write_as(Append)
        self._collector = Collector(table)
        self._quarantine = Companion(spark, table.quarantine)
        self.companions = (self._quarantine,)
        time_column = deduplicate.time_column(table, self._write)
        self._known_keys = (
            KnownKeys(table.name, self._write, time_column) if self._write.unique and time_column else None
        )

    @staticmethod
    def suits(table: Flow) -> bool:
        return table.write.appends

    def write(self, batch: MicroBatch, planned: PlannedRead) -> Written | Refusal:
        judged = self._collector.judged(batch, planned)
        if isinstance(judged, Refusal):
            return judged
        transaction = self._begin(judged.batch.metadata)
        if not isinstance(transaction, Transaction):
            return transaction or Written(planned.rows, batch.times.newest)
        if found := refusal(self._table, self._write, transaction.layout.schema):
            return found
        new_rows = self._new_rows(judged.kept, transaction)
        if isinstance(new_rows, Refusal):
            return new_rows
        if found := self._quarantine.refusal(batch) or self._quarantine.begin(judged.quarantined):
            return found
        # Written before the first commit, because what its rows tell after that would be too late.
        file = self._file(transaction, [new_rows])
        metadata = judged.batch.metadata.reaching(self._write.watermark, judged.newest)
        self._quarantine.append(judged.quarantined, metadata)
        self._commit(transaction, file, metadata.counting(judged.counts), reads=bool(self._write.unique))
        if self._known_keys and self.target.committed is not None:
            self._known_keys.committed(self.target.committed, new_rows)
        return Written(judged.counts.read, judged.newest)

    def append(self, parts: Iterable[pa.Table], metadata: CommitMetadata) -> int | Refusal:
        """Appends all rows of these parts. Returns how many; 0 if the table holds the batch already."""
        transaction = self._begin(metadata)
        if not isinstance(transaction, Transaction):
            return transaction or 0
        file = self._file(transaction, parts)
        self._commit(transaction, file, metadata, reads=False)
        return file.rows if file else 0

    def forget(self) -> None:
        super().forget()
        if self._known_keys:
            self._known_keys.forget()

    def _new_rows(self, rows: pa.Table, transaction: Transaction) -> pa.Table | Refusal:
        """Returns the first row of each identity that the table does not hold. Rows with NULL in the identity
        all stay.
        """
        if self._known_keys is None:
            return rows
        ordered = _in_order(rows, self._write)
        if isinstance(ordered, Refusal):
            return ordered
        self._known_keys.at(transaction.read_version)
        times, keys = micros(ordered, self._known_keys.moment), keys_of(ordered, self._write.unique)
        if found := self._known_keys.load(time for time in times if time is not None):
            return found
        return ordered.filter(pa.array(_are_new(keys, times, self._known_keys), pa.bool_()))

    def _file(self, transaction: Transaction, parts: Iterable[pa.Table]) -> DataFile | None:
        """Writes a data file; returns None if there are no rows."""
        nonempty = (part for part in parts if len(part))
        first = next(nonempty, None)
        if first is None:
            return None
        return data_file.write(chain([first], nonempty), self.target.path, transaction.layout)

    def _commit(self, transaction: Transaction, file: DataFile | None, metadata: CommitMetadata, reads: bool) -> None:
        adds, rows = ([file.added()], file.rows) if file else ([], 0)
        transaction.append(adds, metadata.text, (metadata.txn_app_id, metadata.batch), rows, reads)


class RecordAppender(Appender):
    """Appends Kafka records as they are. It reads them itself, unless they have headers or the id of a schema."""

    def __init__(self, spark: SparkSession, table: Flow) -> None:
        super().__init__(spark, table)
        self._topics = None if table.source.schema_ids else TopicReader(cluster.of(table.source_as(Kafka)))
        is_local = str(spark.sparkContext.master).startswith("local")
        self._most_records = MOST_LOCAL_RECORDS if is_local else MOST_REMOTE_RECORDS

    @staticmethod
    def suits(table: Flow) -> bool:
        return table.write.appends and prepare.is_raw(table)

    def write(self, batch: MicroBatch, planned: PlannedRead) -> Written | Refusal:
        parts: Iterable[pa.Table]
        if self._topics and not self._topics.has_met_headers and planned.rows <= self._most_records:
            prepare.tune(batch.spark, expected_rows=0)
            parts = self._topics.read(planned.ranges)
        else:
            guarded = storable.guarded(batch.rows, (storable.HEADERS,))
            rows = self._collector.rows(replace(batch, rows=guarded), planned)
            if isinstance(rows, Refusal):
                return rows
            parts = [rows]
        appended = self.append(parts, batch.metadata)
        return appended if isinstance(appended, Refusal) else Written(appended, batch.times.newest)


def _are_new(keys: list[Key], times: list[int | None], known_keys: KnownKeys) -> list[bool]:
    """Returns for each row whether neither the table nor a row before it holds its identity."""
    keys_of_batch: set[Key] = set()
    are_new = []
    for key, time in zip(keys, times, strict=True):
        if time is None or None in key:
            are_new.append(True)
            continue
        are_new.append(key not in keys_of_batch and not known_keys.repeats(key, time))
        keys_of_batch.add(key)
    return are_new


def _in_order(rows: pa.Table, write: Append) -> pa.Table | Refusal:
    """Returns the rows in the order of `deduplicate._order`. Refuses rows that differ only in nested values."""
    declared = write.first_by or write.unique
    others = [name for name in rows.column_names if name not in declared]
    types = {name: rows.schema.field(name).type for name in others}
    floats = [name for name in others if pa.types.is_floating(types[name])]
    comparable = [name for name in others if is_comparable(types[name])]
    keys = [rows.column(name) for name in (*declared, *comparable)]
    keys += [key for name in floats for key in _float_keys(rows.column(name))]
    ordered = pa.table(keys, [str(number) for number in range(len(keys))])
    order = pc.sort_indices(ordered, [(name, "ascending", "at_start") for name in ordered.column_names])
    rows = rows.take(order)
    if len(declared) + len(comparable) + len(floats) < len(rows.column_names):
        places = list(zip(*[column.to_pylist() for column in ordered.take(order).columns], strict=True))
        ties = [index for index, (one, two) in enumerate(zip(places, places[1:], strict=False)) if one == two]
        if any(rows.slice(index, 1) != rows.slice(index + 1, 1) for index in ties):
            return Refusal("rows of one identity differ only in values that are not compared outside Spark")
    return rows


def _float_keys(values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, ...]:
    """Returns what orders floating-point values as Spark does: NaN is the greatest, and -0.0 lies before 0.0."""
    is_nan = pc.is_nan(values)
    numbers = pc.if_else(is_nan, 0.0, values)
    return is_nan, numbers, pc.divide(1.0, numbers)


def refusal(table: Flow, write: Append, columns: pa.Schema) -> Refusal | None:
    """Returns why the fast path cannot write the table, if so. columns: of the table."""
    if not write.unique:
        return None
    if deduplicate.time_column(table, write) is None:
        return Refusal("no timestamp tells which stored rows its rows may repeat")
    return not_compared(columns, (*write.unique, *write.first_by))
