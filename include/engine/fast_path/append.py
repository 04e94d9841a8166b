"""Writes a small batch of rows that are added: one Spark job brings them here, and the rest needs no Spark."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import chain
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from include.engine.batch import deduplicate, quality, watermark
from include.engine.batch.quality import RowCounts
from include.engine.fast_path import data_file
from include.engine.fast_path.data_file import DataFile
from include.engine.fast_path.features import Refused
from include.engine.fast_path.known_keys import KnownKeys, is_comparable, keys_of, micros
from include.engine.fast_path.transaction import Target, Transaction
from include.engine.tables import commit
from include.engine.tables.commit import CommitMetadata
from include.readers import stored_rows
from include.settings import settings
from include.spec import Append, Table


class Appender:
    """Of one flow. moment: the timestamp by which stored rows are looked for, where its rows have an identity."""

    def __init__(self, spark: SparkSession, table: Table, write: Append) -> None:
        self._spark = spark
        self._table = table
        self._write = write
        self._target = Target(spark, table.name)
        self._quarantine: Target | None = None
        self.has_put_aside = False
        moment = deduplicate.moment(table, write)
        self._known = KnownKeys(table.name, write, moment) if write.unique and moment else None

    def append(self, parts: Iterable[pa.Table], stamp: CommitMetadata) -> int:
        """All rows of these parts, as they came. Returns how many; none where the table held the batch already.

        Raises Refused where the table is not for this path; so do the others.
        """
        transaction = self._target.begin()
        if transaction.last_batch(stamp.txn_app_id) >= stamp.batch:
            return 0
        file = self._file(transaction, parts)
        self._commit(transaction, file, stamp, reads=False)
        return file.rows if file else 0

    def append_judged(
        self, rows: pa.Table, stamp: CommitMetadata, newest: int | None, left_before: tuple[int, int] | None
    ) -> tuple[RowCounts, int | None] | None:
        """The good ones of these rows, each once, into the table, and the broken ones into its quarantine.

        rows: with the names of the rules that each breaks, but for that of late rows. newest: what late rows are late
        by. left_before: generation and batch behind which an earlier try may have left broken rows, None where there
        was none. Returns how many went where, and what the next late rows are late by; None where the table held the
        batch already. Raises Broken for rows that must not be there at all.
        """
        self.has_put_aside = False
        rules = watermark.rules_of(self._table, newest)
        groups = self._with_late([tuple(names) for names in rows.column(quality.RULES).to_pylist()], rows, newest)
        tally = RowCounts.of(Counter(groups).items(), rules)
        quality.require_none_fails(tally, rules, stamp)
        transaction = self._target.begin()
        if transaction.last_batch(stamp.txn_app_id) >= stamp.batch:
            return None
        if why := refusal(self._table, self._write, transaction.layout.schema):
            raise Refused(why)
        ends = {names: quality.strictest(names, rules) for names in set(groups)}
        kept = rows.filter(_mask(groups, ends, "warn")).drop_columns([quality.RULES])
        newest = self._newest(kept, newest)
        if self._write.watermark:
            stamp = replace(stamp, newest={self._write.watermark.of: newest})
        new = self._new(kept, transaction)
        # Before anything is committed: what is refused here is written another way.
        file = self._file(transaction, [new])
        broken = _mask(groups, ends, "quarantine")
        told = rows.set_column(rows.column_names.index(quality.RULES), quality.RULES, pa.array(groups, _LIST))
        self._put_aside(told.filter(broken), stamp, left_before)
        self._commit(transaction, file, replace(stamp, rows=asdict(tally)), reads=bool(self._write.unique))
        if self._known and self._target.committed is not None:
            self._known.committed(self._target.committed, new)
        return tally, newest

    def forget(self) -> None:
        """What is known of the table may be wrong."""
        self._target.note(None)
        if self._known:
            self._known.forget()

    def _with_late(self, groups: list[tuple[str, ...]], rows: pa.Table, newest: int | None) -> list[tuple[str, ...]]:
        late = self._write.watermark
        if late is None or newest is None:
            return groups
        border = newest - watermark.border_micros(late)
        times = micros(rows, late.of)
        return [
            (*names, late.rule) if time is not None and time < border and late.rule not in names else names
            for names, time in zip(groups, times, strict=True)
        ]

    def _newest(self, kept: pa.Table, newest: int | None) -> int | None:
        if self._write.watermark is None:
            return None
        times = [time for time in micros(kept, self._write.watermark.of) if time is not None]
        return max([*times, *([] if newest is None else [newest])], default=None)

    def _new(self, rows: pa.Table, transaction: Transaction) -> pa.Table:
        """The first row of each identity that the table does not hold. A row with a NULL in it has no identity."""
        if self._known is None:
            return rows
        rows = rows.take(pc.sort_indices(rows, self._order()))
        self._known.at(transaction.read_version)
        times, keys = micros(rows, self._known.moment), keys_of(rows, self._write.unique)
        self._known.load(time for time in times if time is not None)
        seen: set[tuple[Any, ...]] = set()
        is_new = []
        for key, time in zip(keys, times, strict=True):
            has_identity = None not in key and time is not None
            is_new.append(not has_identity or (key not in seen and not self._known.repeats(key, time)))
            if has_identity:
                seen.add(key)
        return rows.filter(pa.array(is_new, pa.bool_()))

    def _order(self) -> list[tuple[str, str, str]]:
        return [(name, "ascending", "at_start") for name in self._write.first_by or self._write.unique]

    def _file(self, transaction: Transaction, parts: Iterable[pa.Table]) -> DataFile | None:
        """None where there are no rows."""
        filled = (part for part in parts if len(part))
        first = next(filled, None)
        if first is None:
            return None
        return data_file.write(chain([first], filled), self._target.path, transaction.layout)

    def _put_aside(self, rows: pa.Table, stamp: CommitMetadata, left_before: tuple[int, int] | None) -> None:
        name = self._table.quarantine
        if left_before and settings().is_stored(name) and _is_left(name, stamp.flow, left_before):
            raise Refused("an earlier try has left rows in its quarantine")
        if not len(rows):
            return
        if self._quarantine is None:
            self._quarantine = Target(self._spark, name)
        transaction = self._quarantine.begin()
        for column, value in commit.quarantine_columns(asdict(stamp)).items():
            rows = rows.append_column(column, pa.array([value] * len(rows), _TYPES[column]))
        file = data_file.write([rows], self._quarantine.path, transaction.layout)
        self.has_put_aside = True
        transaction.append([file.added()], json.dumps(asdict(stamp)), None, file.rows, reads=False)

    def _commit(self, transaction: Transaction, file: DataFile | None, stamp: CommitMetadata, reads: bool) -> None:
        adds, rows = ([file.added()], file.rows) if file else ([], 0)
        transaction.append(adds, json.dumps(asdict(stamp)), (stamp.txn_app_id, stamp.batch), rows, reads)


_LIST = pa.list_(pa.string())
_TYPES = {
    "_flow": pa.string(),
    "_generation": pa.int32(),
    "_batch": pa.int64(),
    "_source": pa.string(),
    "_replay": pa.int64(),
}


def _mask(groups: list[tuple[str, ...]], ends: dict[tuple[str, ...], str], action: str) -> pa.Array:
    return pa.array([ends[names] == action for names in groups], pa.bool_())


def _is_left(quarantine: str, flow: str, left_before: tuple[int, int]) -> bool:
    generation, batch = ds.field("_generation"), ds.field("_batch")
    later = (generation > left_before[0]) | ((generation == left_before[0]) & (batch > left_before[1]))
    return bool(len(stored_rows.dataset(quarantine).scanner(filter=(ds.field("_flow") == flow) & later).head(1)))


def refusal(table: Table, write: Append, columns: pa.Schema) -> str | None:
    """Why this path does not write such a table; columns: of the table."""
    if not write.unique:
        return None
    if deduplicate.moment(table, write) is None:
        return "no timestamp tells which stored rows its rows may repeat"
    names = (*write.unique, *write.first_by)
    strange = next((name for name in names if not is_comparable(columns.field(name).type)), None)
    return f"its column {strange} is of a type that is not compared outside Spark" if strange else None
