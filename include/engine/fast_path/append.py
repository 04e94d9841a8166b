"""Writes a small batch of appended rows. One Spark job delivers them as Arrow; the rest needs no Spark."""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from include.engine.batch import deduplicate, quality, watermark
from include.engine.batch.quality import RowCounts
from include.engine.batch.watermark import EventTimes
from include.engine.fast_path import checked_rows, data_file
from include.engine.fast_path.companion import Companion
from include.engine.fast_path.data_file import DataFile
from include.engine.fast_path.features import NotSupported
from include.engine.fast_path.known_keys import Key, KnownKeys, is_comparable, keys_of, micros
from include.engine.fast_path.transaction import Target, Transaction
from include.engine.tables.commit import CommitMetadata
from include.spec import Append, Table


class Appender:
    """Appends the batches of one flow."""

    def __init__(self, spark: SparkSession, table: Table, write: Append) -> None:
        self._table = table
        self._write = write
        self.target = Target(spark, table.name)
        self._quarantine = Companion(spark, table.quarantine)
        self.companions = (self._quarantine,)
        time_column = deduplicate.time_column(table, write)
        self._known_keys = KnownKeys(table.name, write, time_column) if write.unique and time_column else None

    def append(self, parts: Iterable[pa.Table], metadata: CommitMetadata) -> int:
        """Appends all rows of these parts. Returns how many; 0 if the table holds the batch already.

        Raises NotSupported if the fast path cannot write the table, as the other methods do.
        """
        transaction = self.target.begin()
        if transaction.last_batch(metadata.txn_app_id) >= metadata.batch:
            return 0
        file = self._file(transaction, parts)
        self._commit(transaction, file, metadata, reads=False)
        return file.rows if file else 0

    def append_checked(
        self, rows: pa.Table, metadata: CommitMetadata, times: EventTimes, left_before: tuple[int, int] | None
    ) -> tuple[RowCounts, int | None] | None:
        """Appends the good rows, each identity once, and quarantines the broken ones.

        rows: the table's columns plus `_rules`, without the rules of the watermark. left_before: generation and batch
        after which an earlier try may have quarantined rows, if any. Returns the counts and the watermark time for the
        next batch; None if the table holds the batch already.
        Raises FlowBroken for rows that break a rule of action `fail`.
        """
        self._quarantine.has_written = False
        rules = watermark.rules_of(self._table, times)
        groups = checked_rows.broken_rules(rows, self._write, times)
        checked = checked_rows.divide(rows, groups, rules)
        quality.require_none_fails(checked.counts, rules, metadata)
        transaction = self.target.begin()
        if transaction.last_batch(metadata.txn_app_id) >= metadata.batch:
            return None
        if reason := refusal(self._table, self._write, transaction.layout.schema):
            raise NotSupported(reason)
        newest = times.after(micros(checked.kept, self._write.watermark.of)) if self._write.watermark else None
        if self._write.watermark:
            metadata = replace(metadata, newest={self._write.watermark.of: newest})
        new_rows = self._new_rows(checked.kept, transaction)
        # Written before the first commit, because a refusal after that would be too late.
        file = self._file(transaction, [new_rows])
        self._quarantine.begin(metadata.flow, left_before)
        self._quarantine.append(checked.quarantined, metadata)
        self._commit(transaction, file, replace(metadata, rows=asdict(checked.counts)), reads=bool(self._write.unique))
        if self._known_keys and self.target.committed is not None:
            self._known_keys.committed(self.target.committed, new_rows)
        return checked.counts, newest

    def forget(self) -> None:
        """Discards what it knows of the table, which may be outdated."""
        self.target.note(None)
        if self._known_keys:
            self._known_keys.forget()

    def _new_rows(self, rows: pa.Table, transaction: Transaction) -> pa.Table:
        """Returns the first row of each identity that the table does not hold. Rows with NULL in the identity
        all stay.
        """
        if self._known_keys is None:
            return rows
        rows = _in_order(rows, self._write)
        self._known_keys.at(transaction.read_version)
        times, keys = micros(rows, self._known_keys.moment), keys_of(rows, self._write.unique)
        self._known_keys.load(time for time in times if time is not None)
        return rows.filter(pa.array(_are_new(keys, times, self._known_keys), pa.bool_()))

    def _file(self, transaction: Transaction, parts: Iterable[pa.Table]) -> DataFile | None:
        """Writes a data file; returns None if there are no rows."""
        nonempty = (part for part in parts if len(part))
        first = next(nonempty, None)
        if first is None:
            return None
        return data_file.write(chain([first], nonempty), self.target.path, transaction.layout)

    def _commit(self, transaction: Transaction, file: DataFile | None, metadata: CommitMetadata, reads: bool) -> None:
        adds, rows = ([file.added()], file.rows) if file else ([], 0)
        transaction.append(adds, json.dumps(asdict(metadata)), (metadata.txn_app_id, metadata.batch), rows, reads)


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


def _in_order(rows: pa.Table, write: Append) -> pa.Table:
    """Returns the rows in the order of `deduplicate._order`. Raises NotSupported if only nested values differ."""
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
            raise NotSupported("rows of one identity differ only in values that are not compared outside Spark")
    return rows


def _float_keys(values: pa.ChunkedArray) -> tuple[pa.ChunkedArray, ...]:
    """Returns what orders floating-point values as Spark does: NaN is the greatest, and -0.0 lies before 0.0."""
    is_nan = pc.is_nan(values)
    numbers = pc.if_else(is_nan, 0.0, values)
    return is_nan, numbers, pc.divide(1.0, numbers)


def refusal(table: Table, write: Append, columns: pa.Schema) -> str | None:
    """Returns why the fast path cannot write the table, if so. columns: of the table."""
    if not write.unique:
        return None
    if deduplicate.time_column(table, write) is None:
        return "no timestamp tells which stored rows its rows may repeat"
    names = (*write.unique, *write.first_by)
    unsupported = next((name for name in names if not is_comparable(columns.field(name).type)), None)
    return f"its column {unsupported} is of a type that is not compared outside Spark" if unsupported else None
