"""Writes a small batch of appended rows. One Spark job delivers them as Arrow; the rest needs no Spark.

Rows that a rule keeps out go into a companion of the table: the quarantine, or the retained changes.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from include.delta import stored_table
from include.engine.batch import deduplicate, quality, storable, watermark
from include.engine.batch.merge_changes import DELETED, TRUNCATES
from include.engine.batch.quality import RowCounts
from include.engine.batch.watermark import EventTimes
from include.engine.fast_path import data_file
from include.engine.fast_path.data_file import DataFile
from include.engine.fast_path.known_keys import Key, KnownKeys, is_comparable, keys_of, micros
from include.engine.fast_path.transaction import NotSupported, Target, Transaction
from include.engine.tables import commit
from include.engine.tables.commit import CommitMetadata
from include.rules import Rule
from include.settings import settings
from include.spec import Append, Table, WriteMode
from include.spec.origin import FAILED_REASON, FAILED_RECORD

_TYPES = {
    "_flow": pa.string(),
    "_generation": pa.int32(),
    "_batch": pa.int64(),
    "_source": pa.string(),
    "_replay": pa.int64(),
}


class Companion:
    """A companion of a table, as one flow writes it. has_written: whether it holds rows of the flow's last batch."""

    def __init__(self, spark: SparkSession, name: str) -> None:
        self.name = name
        self.has_written = False
        self._spark = spark
        self._target: Target | None = None

    @property
    def version(self) -> int:
        """The newest version of the companion."""
        return self._opened.version

    @property
    def committed(self) -> int | None:
        """The version that it has committed, if no other writer can have come in between."""
        return self._opened.committed

    @property
    def _opened(self) -> Target:
        if self._target is None:
            self._target = Target(self._spark, self.name)
        return self._target

    def begin(self, flow: str, left_before: tuple[int, int] | None) -> None:
        """Begins a batch. left_before: as for `Appender.append_checked`. Raises NotSupported if an earlier try of the
        batch has left rows.
        """
        self.has_written = False
        if left_before and settings().is_stored(self.name) and _holds_later(self.name, flow, left_before):
            raise NotSupported(f"an earlier try has left rows in {self.name}")

    def append(self, rows: pa.Table, metadata: CommitMetadata) -> None:
        """Appends rows of the batch, with at least the columns of the companion that do not describe the batch.

        Raises NotSupported if the companion is not stored, as for a table without rules until a row breaks one that its
        columns imply.
        """
        if not len(rows):
            return
        if self._target is None and not settings().is_stored(self.name):
            raise NotSupported(f"{self.name} is not stored yet")
        transaction = self._opened.begin()
        for column, value in commit.quarantine_columns(asdict(metadata)).items():
            rows = rows.append_column(column, pa.array([value] * len(rows), _TYPES[column]))
        for column in (FAILED_REASON, FAILED_RECORD):
            rows = rows.append_column(column, pa.nulls(len(rows), pa.string()))
        file = data_file.write([rows], transaction.target.path, transaction.layout)
        self.has_written = True
        transaction.append([file.added()], json.dumps(asdict(metadata)), None, file.rows, reads=False)


def _holds_later(name: str, flow: str, left_before: tuple[int, int]) -> bool:
    generation, batch = ds.field("_generation"), ds.field("_batch")
    later = (generation > left_before[0]) | ((generation == left_before[0]) & (batch > left_before[1]))
    return bool(len(stored_table.dataset(name).scanner(filter=(ds.field("_flow") == flow) & later).head(1)))


Groups = list[tuple[str, ...]]


@dataclass(frozen=True)
class CheckedRows:
    """kept: without `_rules`. quarantined: with `_rules`."""

    counts: RowCounts
    kept: pa.Table
    quarantined: pa.Table


def broken_rules(rows: pa.Table, write: WriteMode, times: EventTimes) -> Groups:
    """Returns the rules that each row breaks: those of the column `_rules`, and those of the watermark."""
    groups: Groups = [tuple(names) for names in rows.column(quality.RULES).to_pylist()]
    declared = write.watermark
    if declared is None:
        return groups
    broken = [
        times.broken(declared, time) if may else ()
        for time, may in zip(micros(rows, declared.of), _may_be_late(rows, write), strict=True)
    ]
    return [tuple(dict.fromkeys((*names, *added))) for names, added in zip(groups, broken, strict=True)]


def _may_be_late(rows: pa.Table, write: WriteMode) -> list[bool]:
    """Returns for each row whether no `merge_changes.is_exempt` applies to it."""
    if not write.merges_changes:
        return [True] * len(rows)
    truncates = [False] * len(rows)
    if write.truncates:
        sequences = rows.column(write.sequence_by)
        truncates = pc.and_(pc.fill_null(rows.column(TRUNCATES), False), pc.is_valid(sequences)).to_pylist()
    deletes = rows.column(DELETED).to_pylist()
    return [is_delete is False and not truncate for is_delete, truncate in zip(deletes, truncates, strict=True)]


def divide(rows: pa.Table, groups: Groups, rules: tuple[Rule, ...]) -> CheckedRows:
    """rows: with the column `_rules`. groups: the rules that each row breaks. Raises NotSupported for rows that only
    Spark's path quarantines.
    """
    if any(storable.TIMES in names for names in groups):
        raise NotSupported("times of its rows are not within the years 1 to 9999")
    actions = {names: quality.strictest(names, rules) for names in set(groups)}
    with_rules = rows.set_column(
        rows.column_names.index(quality.RULES), quality.RULES, pa.array(groups, pa.list_(pa.string()))
    )
    return CheckedRows(
        RowCounts.of(Counter(groups).items(), rules),
        rows.filter(_mask(groups, actions, "warn")).drop_columns([quality.RULES]),
        with_rules.filter(_mask(groups, actions, "quarantine")),
    )


def _mask(groups: Groups, actions: dict[tuple[str, ...], str], action: str) -> pa.Array:
    return pa.array([actions[names] == action for names in groups], pa.bool_())


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
        groups = broken_rules(rows, self._write, times)
        checked = divide(rows, groups, rules)
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
