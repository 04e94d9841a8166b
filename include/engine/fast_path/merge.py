"""Merges a small batch of changes: reads what is stored of its keys, and replaces their rows.

One Spark job delivers the changes as Arrow, and another merges them with the stored ones, by the same code as for large
batches.
"""

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from include.delta import stored_table
from include.engine.commit import CommitMetadata
from include.engine.fast_path import data_file, known_keys, replaced_files
from include.engine.fast_path.collect import Collector, JudgedRows
from include.engine.fast_path.known_keys import Key, keys_of, not_compared
from include.engine.fast_path.lookup_tables import local_frame
from include.engine.fast_path.replaced_files import Replacement, StoredFile
from include.engine.fast_path.transaction import Transaction
from include.engine.fast_path.writer import Companion, Writer, is_committed
from include.engine.rows import merge_changes, transform
from include.engine.rows.merge_changes import DELETED, IS_CURRENT, RETAINED, SHOWN, TRUNCATES, KeyOutcomes
from include.engine.rows.micro_batch import MicroBatch, Refusal, Written
from include.engine.sources.reader import PlannedRead
from include.spec import Flow, Upsert

# Most bytes of retained changes in memory, about four million deletes. More are read again for each batch.
MOST_BYTES = 128_000_000
# So many additions are put together, because each is looked through by itself.
MOST_PARTS = 50


class Retained:
    """The retained changes of one table, which one flow writes. Keeps them in memory at the version it has read."""

    def __init__(self, table: Flow, write: Upsert, companion: Companion) -> None:
        self._table = table
        self._write = write
        self._companion = companion
        self._open_table: DeltaTable | None = None
        self._version: int | None = None
        # None: they are too many.
        self._rows: pa.Table | None = None

    def of_keys(self, keys: set[Key], last_commit: tuple[int, int] | None) -> pa.Table:
        """Returns what committed batches have retained: changes of these keys, and truncates.

        last_commit: generation and batch of the flow's newest commit.
        """
        self._read(last_commit)
        name = self._write.keys[0]
        if self._rows is None:
            dataset, names = self._dataset()
            may_count = ds.field(name).isin(replaced_files.key_values(keys, 0, dataset.schema.field(name).type))
            if self._write.truncates:
                may_count |= ds.field(TRUNCATES)
            rows = dataset.to_table(columns=names, filter=is_committed(last_commit) & may_count)
        else:
            values = replaced_files.key_values(keys, 0, self._rows.schema.field(name).type)
            mask = pc.is_in(self._rows.column(name), value_set=values)
            if self._write.truncates:
                mask = pc.or_(mask, pc.fill_null(self._rows.column(TRUNCATES), False))
            rows = self._rows.filter(mask)
        of_keys = replaced_files.with_keys(rows, keys, self._write.keys, are_kept=True)
        return pa.concat_tables([of_keys, rows.filter(pc.field(TRUNCATES))]) if self._write.truncates else of_keys

    def begin(self, rows: pa.Table) -> Refusal | None:
        """Begins to retain changes of the batch, if `Companion.begin` does."""
        return self._companion.begin(rows)

    def append(self, rows: pa.Table, metadata: CommitMetadata) -> None:
        """Retains changes of the batch, with which it has begun."""
        known, self._version = self._version, None
        if not len(rows):
            self._version = known
            return
        self._companion.append(rows, metadata)
        committed = self._companion.committed
        if known is not None and committed == known + 1:
            if self._rows is not None:
                added = rows.select(self._rows.column_names).cast(self._rows.schema)
                self._rows = pa.concat_tables([self._rows, added])
                if self._rows.column(0).num_chunks > MOST_PARTS:
                    self._rows = self._rows.combine_chunks()
            self._version = committed

    def forget(self) -> None:
        """Discards what it knows of the table, which may be outdated."""
        self._version, self._rows = None, None

    def _read(self, last_commit: tuple[int, int] | None) -> None:
        """Reads the newest version, unless it is known."""
        version = self._companion.version
        if version == self._version and (self._rows is None or self._rows.nbytes <= MOST_BYTES):
            return
        self.forget()
        self._open_table = known_keys.at_version(self._table.retained, self._open_table, version)
        dataset, names = self._dataset()
        # Other rows are those of a batch that failed. Its next try replaces them, which is another version.
        scanner = dataset.scanner(columns=names, filter=is_committed(last_commit))
        batches, size = [], 0
        for batch in scanner.to_batches():
            batches.append(batch)
            size += batch.nbytes
            if size > MOST_BYTES:
                break
        else:
            self._rows = pa.Table.from_batches(batches, scanner.projected_schema).combine_chunks()
        self._version = version

    def _dataset(self) -> tuple[Any, list[str]]:
        """Returns the table as read, and the names of its columns that count. Older releases have stored more."""
        dataset = stored_table.dataset(self._table.retained, self._open_table)
        return dataset, transform.names_of_retained(self._table)


# Rows of a key in a form that can be compared, each with whether it is current.
Rows = dict[str, bool]


@dataclass(frozen=True)
class MergedRows:
    """The merge of a batch with what is stored of its keys. stored: the files that hold rows of them. shown: rows of
    the table. hidden: changes to retain. tombstones: how many changes of the batch are none.
    """

    keys: set[Key]
    stored: list[StoredFile]
    shown: pa.Table
    hidden: pa.Table
    tombstones: int


class Merger(Writer):
    """Merges the batches of one flow."""

    def __init__(self, spark: SparkSession, table: Flow) -> None:
        super().__init__(spark, table)
        self._write = table.write_as(Upsert)
        self._collector = Collector(table)
        self._open_table: DeltaTable | None = None
        self._quarantine, retained = Companion(spark, table.quarantine), Companion(spark, table.retained)
        self.companions = (self._quarantine, retained)
        self._retained = Retained(table, self._write, retained)

    @staticmethod
    def suits(table: Flow) -> bool:
        return table.merges_changes

    def write(self, batch: MicroBatch, planned: PlannedRead) -> Written | Refusal:
        judged = self._collector.judged(batch, planned)
        if isinstance(judged, Refusal):
            return judged
        transaction = self._begin(judged.batch.metadata)
        if not isinstance(transaction, Transaction):
            return transaction or Written(planned.rows, batch.times.newest)
        if self._write.truncates and pc.any(judged.kept.column(TRUNCATES)).as_py():
            return Refusal("a change deletes all its keys")
        if found := not_compared(transaction.layout.schema, self._write.keys, "its key"):
            return found
        for companion in self.companions:
            if found := companion.refusal(batch):
                return found
        merged = self._read_and_merge(transaction, judged)
        if isinstance(merged, Refusal):
            return merged
        with replaced_files.discarded_on_error(merged.stored):
            found = self._quarantine.begin(judged.quarantined) or self._retained.begin(merged.hidden)
        if found:
            replaced_files.discard(merged.stored)
            return found
        self._quarantine.append(judged.quarantined, judged.batch.metadata)
        self._retained.append(merged.hidden, judged.batch.metadata)
        self._replace(transaction, merged, judged)
        return Written(judged.counts.read, judged.newest)

    def forget(self) -> None:
        super().forget()
        self._retained.forget()

    def _candidates(self, transaction: Transaction, changes: pa.Table) -> list[tuple[str, int]]:
        """Returns the files that may hold rows of these keys, by the statistics of the first key, with their sizes."""
        self._open_table = known_keys.at_version(self._table.name, self._open_table, transaction.read_version)
        actions = pa.table(self._open_table.get_add_actions(flatten=True))
        return _files_near(actions, self._write.keys[0], changes)

    def _read_and_merge(self, transaction: Transaction, judged: JudgedRows) -> MergedRows | Refusal:
        """Merges the changes with the stored rows and the retained changes of their keys."""
        columns, layout = self._write.keys, transaction.layout
        changes = judged.kept.filter(pc.is_valid(judged.kept.column(DELETED)))
        keys = set(keys_of(changes, columns))
        stored = replaced_files.rewrite(
            transaction, self._candidates(transaction, changes) if keys else (), keys, columns
        )
        if isinstance(stored, Refusal):
            return stored
        with replaced_files.discarded_on_error(stored):
            known = [replaced_files.with_keys(file.rows, keys, columns, are_kept=True) for file in stored]
            parts = [
                _with_flags(changes.select(transform.names_of_changes(self._table)), (RETAINED,), False),
                _with_flags(
                    pa.concat_tables([layout.schema.empty_table(), *known]),
                    (*merge_changes.flags(self._write), RETAINED),
                    False,
                ),
                _with_flags(self._retained.of_keys(keys, judged.batch.last_commit), (RETAINED,), True),
            ]
            table = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
            result = merge_changes.merged(local_frame(self._spark, table), self._write).toArrow()
            hidden = result.filter(pc.and_(pc.invert(result.column(SHOWN)), pc.invert(result.column(RETAINED))))
            shown = data_file.conform(result.filter(result.column(SHOWN)), layout)
        return MergedRows(keys, stored, shown, hidden, tombstones=len(judged.kept) - len(changes))

    def _replace(self, transaction: Transaction, merged: MergedRows, judged: JudgedRows) -> None:
        """Replaces the stored rows of the keys, except of those that stay as they are."""
        columns, keys, stored = self._write.keys, merged.keys, merged.stored
        known = [replaced_files.with_keys(file.rows, keys, columns, are_kept=True) for file in stored]
        old, new = _rows_by_key(known, columns), _rows_by_key([merged.shown], columns)
        changed = {key for key in keys if old.get(key) != new.get(key)}
        rows_of_changed = [(old.get(key, {}), new.get(key, {})) for key in changed]
        outcomes = _outcomes(rows_of_changed, len(keys), judged.counts.kept, merged.tombstones)
        metadata = judged.batch.metadata.reaching(self._write.watermark, judged.newest)
        metadata = metadata.counting(judged.counts, outcomes)
        if not changed:
            replaced_files.discard(stored)
        elif any(file.others for file in stored):
            # The new files lack all rows of these keys.
            changed = keys
        rows = replaced_files.with_keys(merged.shown, changed, columns, are_kept=True)
        replacement = Replacement(stored, rows, changed, columns, _merge_metrics(rows_of_changed))
        replaced_files.commit_replacement(transaction, replacement, metadata)


def _files_near(actions: pa.Table, name: str, changes: pa.Table) -> list[tuple[str, int]]:
    """Returns path and size of the files that may hold a value of this column of the changes. actions: flattened."""
    files = list(zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True))
    bounds = [f"min.{name}", f"max.{name}"]
    if not set(bounds) <= set(actions.column_names) or pa.types.is_timestamp(changes.schema.field(name).type):
        # The greatest time may be truncated to milliseconds.
        return files
    try:
        values = sorted(set(changes.column(name).to_pylist()))
    except (ValueError, OverflowError):
        # Python does not know such a date or text.
        return files
    pairs = zip(*(actions.column(bound).to_pylist() for bound in bounds), strict=True)
    return [file for file, (least, greatest) in zip(files, pairs, strict=True) if _overlaps(values, least, greatest)]


def _rows_by_key(parts: list[pa.Table], columns: tuple[str, ...]) -> dict[Key, Rows]:
    rows: dict[Key, Rows] = {}
    for part in parts:
        for key, row in zip(keys_of(part, columns), _plain(part).to_pylist(), strict=True):
            rows.setdefault(key, {})[repr(row)] = bool(row.get(IS_CURRENT, True))
    return rows


def _plain(rows: pa.Table) -> pa.Table:
    """Returns rows with times as integers and text as bytes: Python has no year 10000, and no text that is no UTF-8."""
    return rows.cast(pa.schema([pa.field(field.name, _plain_type(field.type)) for field in rows.schema]))


def _plain_type(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_date32(type_):
        return pa.int32()
    if pa.types.is_string(type_):
        return pa.binary()
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, _plain_type(field.type)) for field in type_])
    if pa.types.is_list(type_):
        return pa.list_(pa.field(type_.value_field.name, _plain_type(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(_plain_type(type_.key_type), _plain_type(type_.item_type))
    return type_


def _outcomes(changed: list[tuple[Rows, Rows]], keys: int, kept: int, tombstones: int) -> KeyOutcomes:
    """Counts the outcomes of a batch without truncates. changed: the rows before and after of each changed key."""
    had_and_has = [(any(old.values()), any(new.values())) for old, new in changed]
    inserted, deleted = had_and_has.count((False, True)), had_and_has.count((True, False))
    updated = len(changed) - inserted - deleted
    return KeyOutcomes(keys, kept - keys - tombstones, 0, inserted, updated, deleted, tombstones)


def _merge_metrics(changed: list[tuple[Rows, Rows]]) -> dict[str, int]:
    """Returns the row counts of MERGE. changed: the rows before and after of each changed key."""
    gone = [len(old.keys() - new.keys()) for old, new in changed]
    made = [len(new.keys() - old.keys()) for old, new in changed]
    updated = sum(map(min, gone, made))
    return {
        "operationNumSourceRows": sum(made) + sum(gone) - updated,
        "numTargetRowsInserted": sum(made) - updated,
        "numTargetRowsUpdated": updated,
        "numTargetRowsDeleted": sum(gone) - updated,
    }


def _with_flags(rows: pa.Table, names: tuple[str, ...], value: bool) -> pa.Table:
    for name in names:
        rows = rows.append_column(name, pa.array([value] * len(rows), pa.bool_()))
    return rows


def _overlaps(values: list[Any], least: Any, greatest: Any) -> bool:
    """Whether one of these sorted values lies within the bounds, which may be unknown."""
    if least is None or greatest is None:
        return True
    index = bisect_left(values, least)
    return index < len(values) and bool(values[index] <= greatest)
